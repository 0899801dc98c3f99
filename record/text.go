package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/golocker/locker"
)

// format is the number of the format of the text. A process that does not know a field must not write over the record.
// So a text with unknown fields, or of another format, is refused as something that is not a lock. Whoever adds a field
// after a release, or gives one another meaning, raises the number, so that the error says what is wrong.
const format = 1

// maxClockID is how many bytes the id of a Clock may have, so that texts keep their size.
const maxClockID = 64

// maxEnds is the greatest time of a Clock, some 139 years. A time.Duration has room for twice as much.
const maxEnds = int64(1 << 42)

// maxLength is how long a length may be. Two extensions at the same time, each by the longest TTL, write one that is a
// little longer.
const maxLength = int64(2 * locker.MaxTTL / time.Millisecond)

// maxToken is where tokens end: Lua and JavaScript know no greater number exactly. The clock is there in 2255.
const maxToken = 1 << 53

// state says whether a lock is taken.
type state string

const (
	held state = "held"
	kept state = "kept" // taken without an owner, because of MinHold
	free state = "free"
)

// content is what the text of a record says.
type content struct {
	Format int    `json:"locker"`
	State  state  `json:"state"`
	Owner  string `json:"owner,omitempty"` // the last one, if the lock is not held; empty if it was taken by force
	Label  string `json:"label,omitempty"`

	Token uint64 `json:"token,omitempty"` // the first fencing token of the owner
	Last  uint64 `json:"last"`            // the last one that was issued for the key; never falls

	// Length is for how long nobody else takes the lock after it has seen the record for the first time. At every moment,
	// it covers the longest promise on which the owner may rely.
	Length int64 `json:"length_ms,omitempty"`

	// Clock and Ends say on the clock of which id, and at which time of it, the length is over. They are missing if the
	// writer has no [Clock], and if the lock is free.
	Clock string `json:"clock,omitempty"`
	Ends  int64  `json:"ends_ms,omitempty"`

	Age int64 `json:"age_ms,omitempty"` // how long the owner had the lock when the record was written

	// Ticks has the last ticks of a job that were claimed; see ticks.go. The record is that of no lock, and free.
	Ticks string `json:"ticks,omitempty"`

	// Nonce is in no other text. That of a record that was adopted begins with the one of the record that it stands for.
	Nonce string `json:"nonce"`

	// Over has the nonces of the records that the locks of the last owners were written over, cut short: that of the
	// last owner first. By them, a release whose success was reported as a conflict is told from a lock that was lost,
	// although other owners have had the lock already.
	Over string `json:"over,omitempty"`
}

const (
	// maxOver is how many nonces Over has. So many owners may follow each other while a release waits for its answer.
	maxOver = 12

	// overLen is how many bytes of each it has: 50 bits.
	overLen = 10
)

// before returns what Over is in the record of a lock that is written over c.
func (c *content) before() string {
	all := append([]string{c.Nonce[:min(overLen, len(c.Nonce))]}, strings.Split(c.Over, ",")...)
	return strings.TrimSuffix(strings.Join(all[:min(maxOver, len(all))], ","), ",")
}

// taken reports whether the record keeps others from the lock, for its length.
func (c *content) taken() bool { return c.State == held || c.State == kept }

func (c *content) length() time.Duration { return time.Duration(c.Length) * time.Millisecond }

// milliseconds rounds up, so that a promise is never longer than the length of its record.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// nonceLen is how long a nonce is, of a record that was not adopted.
const nonceLen = 26

// is reports whether c is the record with that nonce, or stands for it.
func (c *content) is(nonce string) bool { return nonce != "" && strings.HasPrefix(c.Nonce, nonce) }

// renew gives c a nonce. If it has one already, that is of the record that it is to stand for.
func (c *content) renew(nonce string) { c.Nonce = c.Nonce[:min(nonceLen, len(c.Nonce))] + nonce }

// text returns the text of a record that has one lock.
func (c *content) text() []byte {
	c.Format = format
	return encode(c)
}

// encode returns what consists of texts and numbers as JSON.
func encode(what any) []byte {
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	to.SetEscapeHTML(false) // which makes six bytes of one
	_ = to.Encode(what)     // never fails
	return bytes.TrimSpace(text.Bytes())
}

// knows returns an error that matches locker.ErrForeignKey if a text is not of the given format.
func knows(text []byte, format int) error {
	var head struct {
		Format int `json:"locker"`
	}
	if err := json.Unmarshal(text, &head); err != nil || head.Format == 0 {
		return fmt.Errorf("%w: the record has another text than those of this library", locker.ErrForeignKey)
	}
	if head.Format != format {
		return fmt.Errorf("%w: the record has format %d, and this version of the library knows format %d for that key: use "+
			"the one that has written it", locker.ErrForeignKey, head.Format, format)
	}
	return nil
}

// parse is the reverse of text. The error matches locker.ErrForeignKey.
func parse(text []byte) (content, error) {
	var c content
	foreign := func(why string, args ...any) (content, error) {
		return content{}, fmt.Errorf("%w: "+why, append([]any{locker.ErrForeignKey}, args...)...)
	}
	if err := knows(text, format); err != nil {
		return content{}, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return foreign("the record: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return foreign("the record has something after its text")
	}
	return c, c.check()
}

// check returns an error that matches locker.ErrForeignKey if a record cannot say that of a lock.
func (c *content) check() error {
	foreign := func(why string, args ...any) error {
		return fmt.Errorf("%w: "+why, append([]any{locker.ErrForeignKey}, args...)...)
	}
	ticks, ok := ticksOf(c.Ticks)
	switch {
	case !ok || len(ticks) > 0 && c.State != free:
		return foreign("the record has the ticks %q", c.Ticks)
	case c.Nonce == "" || c.Last == 0:
		return foreign("the record has no nonce or no tokens")
	case c.Last > maxToken:
		return foreign("the record has the token %d, and tokens end at 2⁵³", c.Last)
	case c.State == free:
		return nil
	case !c.taken():
		return foreign("the record has the unknown state %q", c.State)
	case c.Owner == "" || c.Token == 0 || c.Token > c.Last:
		return foreign("the record has no owner or no token")
	case c.Length <= 0 || c.Length > maxLength:
		return foreign("the record has a length of %d ms", c.Length)
	case (c.Clock == "") != (c.Ends == 0) || c.Ends < 0 || c.Ends > maxEnds:
		return foreign("the record ends at %d ms of the clock %q", c.Ends, c.Clock)
	}
	return nil
}
