package config

import (
	"errors"
	"fmt"
	"maps"
	"strings"
)

// builder puts a Config together from its sources, collects every problem on the way, and remembers where each field
// came from, so that a value that turns out to be wrong later is still blamed on its line or variable.
type builder struct {
	c        *Config
	source   string            // what errors say before the name of a field that is set nowhere
	about    *kind             // the backend that a URL names; its parameters are named without it
	origin   map[string]string // by path: what errors say instead of source and name
	failed   map[string]bool   // by path: reported already
	broken   bool              // a source could not be read at all, so what is missing says nothing
	problems []error
}

// newBuilder returns a builder that goes on with c, which must not be shared.
func newBuilder(c *Config) *builder {
	return &builder{c: c, origin: make(map[string]string), failed: make(map[string]bool)}
}

func (b *builder) report(where string, err error) {
	b.problems = append(b.problems, fmt.Errorf("config: %s: %w", where, err))
}

// abandon reports an error after which the rest of a source makes no sense.
func (b *builder) abandon(where string, err error) {
	b.report(where, err)
	b.broken = true
}

// set sets the field at path to v, which came from where.
func (b *builder) set(path, v, where string) {
	below := func(p string) bool { return strings.HasPrefix(p, path+"[") } // a list is replaced as a whole
	maps.DeleteFunc(b.origin, func(p, _ string) bool { return below(p) })
	maps.DeleteFunc(b.failed, func(p string, _ bool) bool { return below(p) })
	b.origin[path] = where
	delete(b.failed, path)
	if err := fieldAt(path).set(b.c, v); err != nil {
		b.fail(path, where, err)
	}
}

// fail reports what is wrong with the field at path, once and for all.
func (b *builder) fail(path, where string, err error) {
	b.failed[path] = true
	b.report(where, err)
}

// finish checks the whole and returns it, or all problems.
func (b *builder) finish() (*Config, error) {
	b.c.check(func(path string, err error) {
		if err != nil && !b.broken && !b.failed[path] {
			b.fail(path, b.where(path), err)
		}
	})
	if b.problems != nil {
		return nil, errors.Join(b.problems...)
	}
	return b.c, nil
}

func (b *builder) where(path string) string {
	if where, ok := b.origin[path]; ok {
		return where
	}
	// What an element of a list lacks is looked for where the element is, or the list.
	if list := strings.IndexByte(path, '['); list >= 0 {
		for i := len(path) - 1; i >= list; i-- {
			if where, ok := b.origin[path[:i]]; ok {
				return where + path[i:]
			}
		}
	}
	if b.about == nil {
		return b.source + path
	}
	path = strings.TrimPrefix(path, b.about.name+".")
	if !strings.Contains(path, "[") { // the names in a URL are flat
		path = strings.ReplaceAll(path, ".", "_")
	}
	return b.source + path
}
