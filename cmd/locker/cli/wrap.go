package cli

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
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
	for _, r := range line {
		switch {
		case r == '\x1b':
			escape = true
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
	return b.String()[:fits] + "…\x1b[0m"
}

// wide returns how many columns a character takes, or may take: labels are texts of any language.
func wide(r rune) int {
	if r < 0x1100 || r == '…' {
		return 1
	}
	return 2
}
