package config

import (
	"log/slog"
	"sync"
)

// reread reads a value from files each time it is asked for, because the files may be replaced while the program runs.
// While the files cannot be used, for example because one of them is half written, it returns the last good value.
type reread[T any] struct {
	setting string // the name of the setting, for the log
	read    func() (T, error)
	logger  *slog.Logger // is told of files that cannot be used; nil: nobody is

	mu      sync.Mutex
	good    T
	problem string // that was logged last; empty: the files were all right
}

// begin reads the files for the first time.
func (r *reread[T]) begin() (err error) {
	r.good, err = r.read()
	return err
}

func (r *reread[T]) get() T {
	v, problem, changed := r.again()
	if problem != "" && changed && r.logger != nil { // without mu, because a log handler may open a connection, too
		r.logger.Warn("a file of the configuration cannot be used: new connections use what it contained before",
			"setting", r.setting, "error", problem)
	}
	return v
}

// again reads the files again. It returns the value to use, what is wrong with the files, and whether that is news.
func (r *reread[T]) again() (good T, problem string, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, err := r.read()
	if err == nil {
		r.good = v
	} else {
		problem = err.Error()
	}
	changed = problem != r.problem
	r.problem = problem
	return r.good, problem, changed
}
