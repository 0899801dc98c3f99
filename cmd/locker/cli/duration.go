package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// duration is the value of a flag. Its errors say what to write instead.
type duration time.Duration

// durationVar defines a flag whose default is *p. Help does not show a default that is not positive.
func durationVar(flags *pflag.FlagSet, p *time.Duration, name, usage string) {
	f := flags.VarPF((*duration)(p), name, "", usage)
	if *p <= 0 {
		f.DefValue = "0" // help does not show this of a type that pflag does not know
	}
}

func (d *duration) String() string { return time.Duration(*d).String() }
func (d *duration) Type() string   { return "duration" }

func (d *duration) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("use %s", seconds(s))
	}
	*d = duration(v)
	return nil
}

// seconds returns the duration that s probably means.
func seconds(s string) string {
	if n, err := strconv.ParseFloat(s, 64); err == nil && n > 0 {
		return s + "s"
	}
	return "30s or 500ms"
}
