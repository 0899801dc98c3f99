package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// note tells a person on stderr what is going on, unless --quiet: one line, after the name of the program.
func (a *app) note(format string, args ...any) {
	if !a.quiet {
		// An error of the library begins with that name, too.
		fmt.Fprintf(a.stderr, "locker: %s\n", strings.TrimPrefix(fmt.Sprintf(format, args...), "locker: "))
	}
}

// told is what err says, without the name of the library at the beginning: that of the program stands there.
func told(err error) string { return strings.TrimPrefix(err.Error(), "locker: ") }

// printJSON prints v on stdout, indented for people who look at it, too.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// style paints text for one stream: each method returns its argument, in a colour if there is to be any.
type style struct{ on bool }

// style says whether what goes to w is painted: on a terminal, unless --no-color, NO_COLOR (https://no-color.org, any value
// but the empty one) or a TERM that cannot.
func (a *app) style(w io.Writer) style {
	term := a.getenv("TERM")
	return style{isTerminal(w) && !a.noColor && !a.json && a.getenv("NO_COLOR") == "" && term != "" && term != "dumb"}
}

// isTerminal says whether w is one, or /dev/null, where it does not matter.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (s style) good(text string) string   { return s.paint("32", text) }
func (s style) warn(text string) string   { return s.paint("33", text) }
func (s style) bad(text string) string    { return s.paint("31", text) }
func (s style) strong(text string) string { return s.paint("1", text) }
func (s style) faint(text string) string  { return s.paint("2", text) }

func (s style) paint(code, text string) string {
	if !s.on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// logHandler prints what the library logs as notes. It says little: a Redlock whose nodes look wrong, for instance.
type logHandler struct{ app *app }

func (h *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn
}

func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	r.Attrs(func(at slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", at.Key, at.Value)
		return true
	})
	h.app.note("%s%s", r.Message, b.String())
	return nil
}

// WithAttrs and WithGroup drop what they are given: nothing here uses them.
func (h *logHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *logHandler) WithGroup(string) slog.Handler      { return h }
