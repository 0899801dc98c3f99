package boltlock

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/record"
)

// Config is the section bolt, of URLs such as bolt:///var/lib/locks.db?poll=5ms, and of LOCKER_BOLT_PATH
// and LOCKER_BOLT_POLL.
type Config struct {
	// Path is the absolute path of the file.
	Path string `yaml:"path" json:"path" url:"-"`
	// Poll is the longest pause between two looks of a waiter; see record.Poll. Zero: 100 ms, because a look costs only a
	// read of a file.
	Poll config.Duration `yaml:"poll,omitempty" json:"poll,omitempty"`
}

func init() {
	config.Register("bolt", config.Kind[Config]{
		Parse: func(s *Config, at config.Location, report config.Report) {
			if s.Path = at.Path; at.Host != "" {
				report("path", errors.New("three slashes and an absolute path are expected, as in bolt:///var/lib/locks.db"))
			}
		},
		Format: func(s *Config) config.Location { return config.Location{Path: s.Path} },
		Check: func(s *Config, report config.Report) {
			if !filepath.IsAbs(s.Path) || strings.HasSuffix(s.Path, "/") {
				report("path", errors.New("not the absolute path of a file"))
			}
		},
		Open: func(_ context.Context, s *Config, prefix string) (*locker.Client, error) {
			poll := cmp.Or(time.Duration(s.Poll), 100*time.Millisecond)
			return record.New(NewStore(s.Path), record.Prefix(prefix), record.Poll(poll)), nil
		},
	})
}
