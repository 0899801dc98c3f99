package cli

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
)

func TestHelpShowsTheDefaultOfADurationOnlyIfThereIsOne(t *testing.T) {
	none, some := time.Duration(0), time.Second
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	durationVar(flags, &none, "none", "3s, or something else")
	durationVar(flags, &some, "some", "how often")
	help := flags.FlagUsages()
	assert.NotContains(t, help, "default 0")
	assert.Contains(t, help, "how often (default 1s)")
}
