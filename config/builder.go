package config

import (
	"errors"
	"fmt"
	"strings"
)

// builder puts a Config together from its sources, collects every problem on the way, and remembers where each field came
// from, so that a value that turns out to be wrong later is still blamed on its line or variable.
type builder struct {
	c        Config
	source   string            // what errors say before the name of a field that is set nowhere
	origin   map[string]string // by path: what errors say instead of source and name
	failed   map[string]bool   // by path: reported already
	broken   bool              // a source could not be read at all, so what is missing says nothing
	problems []error
}

func newBuilder(c Config) *builder {
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

// set sets f to v, which came from where.
func (b *builder) set(f *field, v, where string) {
	b.origin[f.path] = where
	delete(b.failed, f.path)
	if err := f.set(&b.c, v); err != nil {
		b.fail(f.path, where, err)
	}
}

// fail reports what is wrong with the field at path, once and for all.
func (b *builder) fail(path, where string, err error) {
	b.failed[path] = true
	b.report(where, err)
}

// finish checks the whole and returns it, or all problems.
func (b *builder) finish() (*Config, error) {
	for _, p := range b.c.check() {
		if !b.broken && !b.failed[p.path] {
			b.report(b.where(p.path), p.err)
		}
	}
	if b.problems != nil {
		return nil, errors.Join(b.problems...)
	}
	return &b.c, nil
}

func (b *builder) where(path string) string {
	if where, ok := b.origin[path]; ok {
		return where
	}
	if strings.HasSuffix(b.source, "URL: ") { // the names there are flat
		path = strings.ReplaceAll(strings.TrimPrefix(path, "redis."), ".", "_")
	}
	return b.source + path
}
