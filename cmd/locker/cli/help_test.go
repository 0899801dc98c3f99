package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
)

// Without a terminal, no help is wider than that of an ordinary terminal, examples among them.
func TestHelpFitsIntoEightyColumns(t *testing.T) {
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		var out bytes.Buffer
		cmd.SetOut(&out)
		assert.NoError(t, cmd.Help())
		for line := range bytes.Lines(out.Bytes()) {
			line = bytes.TrimRight(line, "\n")
			assert.LessOrEqual(t, utf8.RuneCount(line), stdHelp, "%s: %s", cmd.CommandPath(), line)
		}
		for _, sub := range cmd.Commands() {
			if sub.Parent().Name() != "completion" { // its text is cobra's
				each(sub)
			}
		}
	}
	each((&app{stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}}).root())
}

// A line of a table that is too long is wrapped at its second column. With a third one, it would lose its shape. A line
// that goes on with the sentence of the line before would stand alone.
func TestTablesOfTheHelpHaveTwoColumns(t *testing.T) {
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Long) {
			first := gap.FindString(line)
			if !strings.HasPrefix(line, " ") || first == "" {
				continue
			}
			assert.NotContains(t, line[len(first):], "   ", "%s: %s", cmd.CommandPath(), line)
			assert.NotEmpty(t, strings.TrimSpace(first), "%s: %s", cmd.CommandPath(), line)
		}
		for _, sub := range cmd.Commands() {
			if sub.Name() != "completion" { // its text is cobra's
				each(sub)
			}
		}
	}
	var a app
	each(a.root())
}

func TestWrap(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		"one two\nthree":             "one two\nthree",
		"a b c\nd e f g h\n\nnew":    "a b c d e f\ng h\n\nnew",
		"longerthantwelve b":         "longerthantwelve\nb",
		"of:\n\n  a  one\n  bb  two": "of:\n\n  a  one\n  bb  two",
		"  a  one two three four":    "  a  one two\n     three\n     four",
		"  a one two three four":     "  a one two\n  three four",
		"text\n  a  b       c":       "text\n  a  b c",
		"ä ö ü ß é è ê":              "ä ö ü ß é è\nê",
		"text\n\n  ä  één twee drie": "text\n\n  ä  één\n     twee\n     drie",
	} {
		assert.Equal(t, want, wrap(text, 12), "%q", text)
	}
}

func TestCut(t *testing.T) {
	for line, want := range map[string]string{
		"":                        "",
		"12345":                   "12345",
		"123456":                  "1234…",
		"\x1b[1m12345\x1b[0m":     "\x1b[1m12345\x1b[0m",
		"\x1b[1m123456\x1b[0m":    "\x1b[1m1234…\x1b[0m",
		"日本語":                     "日本…",
		"日本5":                     "日本5",
		"123\x1b[31m4567\x1b[0m8": "123\x1b[31m4…\x1b[0m",
	} {
		assert.Equal(t, want, cut(line, 5), "%q", line)
		assert.Equal(t, line, cut(line, 0))
	}
}

func TestHelpShowsTheDefaultOfADurationOnlyIfThereIsOne(t *testing.T) {
	none, some := time.Duration(0), time.Second
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	durationVar(flags, &none, "none", "3s, or something else")
	durationVar(flags, &some, "some", "how often")
	help := flags.FlagUsages()
	assert.NotContains(t, help, "default 0")
	assert.Contains(t, help, "how often (default 1s)")
}
