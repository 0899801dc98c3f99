package filelock

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/record"
)

// Config is the section file, of URLs such as file:/var/lib/myapp/locks and file:locks?poll=20ms, and of
// LOCKER_FILE_DIR and so on.
type Config struct {
	// Dir is the directory. If its path is relative, it is in the working directory.
	Dir string `yaml:"dir,omitempty" json:"dir,omitempty" url:"-"`
	// Poll is the longest pause between two looks of a waiter; see record.Poll. Zero: DefaultPoll.
	Poll config.Duration `yaml:"poll,omitempty" json:"poll,omitempty"`
}

func init() {
	config.Register("file", config.Kind[Config]{
		Paths: true,
		Parse: func(s *Config, at config.Location, report config.Report) {
			if at.Host != "" {
				report("dir", errors.New("a URL has one slash or three before an absolute path, and none before a relative one: "+
					"write file:/var/lib/myapp/locks or file:locks"))
			}
			if at.Path != "" {
				s.Dir = filepath.Clean(at.Path)
			}
		},
		Format: func(s *Config) config.Location { return config.Location{Path: s.Dir} },
		Check: func(s *Config, report config.Report) {
			switch {
			case s.Dir == "":
				report("dir", errors.New("missing: write file:/var/lib/myapp/locks"))
			case strings.HasPrefix(s.Dir, "~"):
				report("dir", errors.New("only a shell knows what ~ is: write the whole path"))
			}
		},
		Open: func(_ context.Context, s *Config, prefix string) (*locker.Client, error) {
			opts := []record.Option{record.Prefix(prefix)}
			if s.Poll > 0 {
				opts = append(opts, record.Poll(time.Duration(s.Poll)))
			}
			return Open(s.Dir, opts...)
		},
	})
}
