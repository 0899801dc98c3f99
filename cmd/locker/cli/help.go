package cli

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Help is wrapped to the width of the terminal, within these bounds. It has the least width if there is no terminal.
const (
	minHelp = 40
	stdHelp = 80
	maxHelp = 120
)

// wrapHelp fits the help of cmd and of the commands below it into a terminal of the given width, which is 0 if there is
// none. Examples stay as they are, because they are for copying.
func wrapHelp(cmd *cobra.Command, width int) {
	if width == 0 {
		width = stdHelp
	}
	width = min(max(width, minHelp), maxHelp)
	wrapped := fmt.Sprintf(".FlagUsagesWrapped %d", width)
	cmd.SetUsageTemplate(strings.ReplaceAll(cmd.UsageTemplate(), ".FlagUsages", wrapped))
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		cmd.Long = wrap(cmd.Long, width)
		for _, sub := range cmd.Commands() {
			each(sub)
		}
	}
	each(cmd)
}

// gap is what separates the first column of a line that begins with white space from the rest.
var gap = regexp.MustCompile(`^ +\S.*?  +`)

// wrap fills the paragraphs of text into lines of the given width. A line that begins with white space stays a line of
// its own. What does not fit into it continues below its second column.
func wrap(text string, width int) string {
	var b strings.Builder
	paragraph := ""
	flush := func() {
		if paragraph != "" {
			fill(&b, "", "", paragraph, width)
		}
		paragraph = ""
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "":
			flush()
			b.WriteByte('\n')
		case line[0] != ' ':
			paragraph += " " + line
		case utf8.RuneCountInString(line) <= width:
			flush()
			b.WriteString(line + "\n")
		default:
			flush()
			first := gap.FindString(line)
			if first == "" {
				first = line[:len(line)-len(strings.TrimLeft(line, " "))]
			}
			fill(&b, first, strings.Repeat(" ", utf8.RuneCountInString(first)), line[len(first):], width)
		}
	}
	flush()
	return strings.TrimRight(b.String(), "\n")
}

// fill writes the words of text in lines of the given width. The first line begins with first, and the others with
// next.
func fill(b *strings.Builder, first, next, text string, width int) {
	line, empty := first, true
	for _, word := range strings.Fields(text) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			b.WriteString(line + "\n")
			line, empty = next, true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	b.WriteString(line + "\n")
}

// cut shortens a line to the given number of columns, so that a terminal does not continue it in the next one.
// Sequences for colours take no column. With 0 columns the line stays as it is.
func cut(line string, columns int) string {
	var b strings.Builder
	used, escape, fits := 0, false, -1 // fits is how much of b there is room for if dots follow
	end := "…"
	for _, r := range line {
		switch {
		case r == '\x1b':
			escape, end = true, "…\x1b[0m"
		case escape:
			escape = r != 'm'
		default:
			used += wide(r)
		}
		if used > columns-1 && fits < 0 {
			fits = b.Len()
		}
		b.WriteRune(r)
	}
	if columns == 0 || used <= columns {
		return line
	}
	return b.String()[:fits] + end
}

// wide returns how many columns a character takes, or may take: labels are texts of any language.
func wide(r rune) int {
	if r < 0x1100 || r == '…' {
		return 1
	}
	return 2
}

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
	if n, err := strconv.Atoi(strings.TrimSuffix(s, "d")); err == nil && n > 0 {
		return strconv.Itoa(24*n) + "h"
	}
	return "30s or 500ms"
}
