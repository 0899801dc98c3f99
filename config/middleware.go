package config

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/middleware/logging"
	"github.com/golocker/locker/middleware/retry"
)

var newTracing func() locker.Middleware

// RegisterTracing makes the setting "tracing" available, as drivers.Register does for drivers. A program without
// tracing is then smaller. Call it from init. It panics if it is called twice.
func RegisterTracing(middleware func() locker.Middleware) {
	if newTracing != nil {
		panic("config: tracing is registered twice")
	}
	newTracing = middleware
}

var errNoTracing = errors.New("not linked in: the program has to import _ " +
	`"github.com/golocker/locker/config/tracing", or to call config.RegisterTracing`)

// Retry configures how failed operations are retried. The zero value of a field means the default of package
// middleware/retry.
type Retry struct {
	// For is for how long one call is retried. Zero: retry.DefaultFor.
	For Duration `yaml:"for,omitempty" json:"for,omitempty"`
	// Base and Most bound the pauses: the first one, and all. Zero: retry.DefaultBase and retry.DefaultMost.
	Base Duration `yaml:"base,omitempty" json:"base,omitempty"`
	Most Duration `yaml:"most,omitempty" json:"most,omitempty"`
	// Budget is the number of retries per second of all calls together. Zero: retry.DefaultBudget.
	Budget int `yaml:"budget,omitempty" json:"budget,omitempty" min:"1"`
	// OnHeld makes TryLock repeat its attempt while another owner holds the lock.
	OnHeld bool `yaml:"on_held,omitempty" json:"on_held,omitempty"`
}

var levelNames = []string{"debug", "info", "warn"}

// levels omits the level error, because nothing is logged as one.
var levels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn}

func (r *Retry) check(report Report) {
	if r == nil {
		return
	}
	base, most := time.Duration(r.Base), time.Duration(r.Most)
	if base == 0 {
		base = retry.DefaultBase
	}
	if most == 0 {
		most = retry.DefaultMost
	}
	switch {
	case base <= most || most < 0:
	case r.Base == 0:
		report("retry.most", fmt.Errorf("%v is less than the first pause of %v: raise most, or lower base", most, base))
	default:
		report("retry.base", fmt.Errorf("%v is more than the longest pause of %v: lower base, or raise most", base, most))
	}
}

// wrap adds the middleware that c switches on to l. Tracing is outermost, so a span covers a call with all its retries.
// Logging is innermost, so it logs each failure of the store, and not only the failures after all retries.
func (c *Config) wrap(l locker.Locker, defaults []locker.Option) locker.Locker {
	var ms []locker.Middleware
	if len(defaults) > 0 {
		ms = append(ms, locker.Defaults(defaults...))
	}
	if c.Tracing {
		ms = append(ms, newTracing())
	}
	if r := c.Retry; r != nil {
		opts := []retry.Option{
			retry.For(time.Duration(r.For)), retry.Backoff(time.Duration(r.Base), time.Duration(r.Most)),
			retry.Budget(r.Budget),
		}
		if r.OnHeld {
			opts = append(opts, retry.OnHeld())
		}
		ms = append(ms, retry.New(opts...))
	}
	if c.Log != "" {
		ms = append(ms, logging.New(c.Logger, logging.Level(levels[c.Log])))
	}
	return locker.Wrap(l, ms...)
}
