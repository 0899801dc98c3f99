package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
)

// note prints a message on stderr, after the name of the program, unless --quiet is set.
func (a *app) note(format string, args ...any) {
	if !a.quiet {
		// Errors of the library begin with the same name.
		fmt.Fprintf(a.stderr, "locker: %s\n", strings.TrimPrefix(fmt.Sprintf(format, args...), "locker: "))
	}
}

// printJSON prints v on stdout as indented JSON.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// style colours text for one stream. Each method returns its argument, in a colour if colours are on.
type style struct{ on bool }

// style returns the style for w. Colours are on if w is a terminal, unless they are switched off by --no-color, by
// NO_COLOR with any value but the empty one (https://no-color.org), or by TERM.
func (a *app) style(w io.Writer) style {
	term := a.getenv("TERM")
	return style{isTerminal(w) && !a.noColor && !a.json && a.getenv("NO_COLOR") == "" && term != "" && term != "dumb"}
}

// isTerminal reports whether w is a terminal. It is also true for /dev/null, where it does not matter.
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

// logHandler prints the warnings that the library logs as notes, for example about the nodes of a Redlock.
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

// WithAttrs and WithGroup ignore their arguments, because the library does not use them.
func (h *logHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *logHandler) WithGroup(string) slog.Handler      { return h }

// progress is a status line on the terminal. Without a terminal it prints nothing. Its methods may be called
// concurrently.
type progress struct {
	app *app
	on  bool
	mu  sync.Mutex
}

func (a *app) progress() *progress {
	return &progress{app: a, on: isTerminal(a.stderr) && !a.quiet && !a.json && a.getenv("TERM") != "dumb"}
}

func (p *progress) show(format string, args ...any) {
	if p.on {
		p.mu.Lock()
		defer p.mu.Unlock()
		fmt.Fprint(p.app.stderr, "\r\x1b[K"+cut(fmt.Sprintf(format, args...)+" …", columns(p.app.stderr)))
	}
}

// done removes the line.
func (p *progress) done() {
	if p.on {
		p.mu.Lock()
		defer p.mu.Unlock()
		fmt.Fprint(p.app.stderr, "\r\x1b[K")
	}
}
