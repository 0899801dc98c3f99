package record

import (
	"maps"
	"slices"
	"time"

	"github.com/golocker/locker/inspect"
)

// Description is what a record says, as far as people want to see it.
type Description struct {
	State  inspect.State // inspect.Held, inspect.Kept or inspect.Free
	Holder string        // the label, or the beginning of the owner's token; empty if the lock is free

	// Length is for how long the record keeps others from the lock, and Age how long the owner had the lock when the
	// record was written. Age is zero in the record of an acquisition, and Length if the lock is free.
	Length, Age time.Duration
}

// Describe reads the text of a record. It is for a [Store] that shows who has a lock, beside the text, in the columns
// of a table or the fields of an object. The error matches locker.ErrForeignKey if a [Backend] would refuse the text.
func Describe(text []byte) (Description, error) {
	if knows(text, groupFormat) == nil {
		return describeGroup(text)
	}
	c, err := parse(text)
	switch {
	case err != nil:
		return Description{}, err
	case c.State == free:
		return Description{State: inspect.Free}, nil
	}
	return c.describe(), nil
}

// describe describes a lock that is taken.
func (c *content) describe() Description {
	d := Description{
		State: inspect.Kept, Holder: c.Owner[:min(ownerPrefixLen, len(c.Owner))], Length: c.length(),
		Age: time.Duration(c.Age) * time.Millisecond,
	}
	if c.State == held {
		d.State = inspect.Held
		if c.Label != "" {
			d.Holder = c.Label
		}
	}
	return d
}

// describeGroup describes the lock of a group that is taken for the longest time, as if it were the only one.
func describeGroup(text []byte) (Description, error) {
	d := Description{State: inspect.Free}
	_, locks, err := parseGroup(text)
	for _, at := range slices.Sorted(maps.Keys(locks)) {
		c := locks[at]
		if one := c.describe(); one.Length > d.Length {
			d = one
		}
	}
	return d, err
}
