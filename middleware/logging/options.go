package logging

import (
	"context"
	"log/slog"
	"time"
	"unicode/utf8"
)

// DefaultLongWait is after how long a call that waits is reported unless [LongWait] says otherwise.
const DefaultLongWait = time.Minute

// maxKey is how much of a key is logged, in bytes, as in errors.
const maxKey = 64

// Option changes what [New] builds.
type Option func(*output)

// output is where to log, and what. It is shared by all calls.
type output struct {
	logger   *slog.Logger
	level    slog.Leveler
	key      func(string) string
	longWait time.Duration
}

// Level is the least level that is logged; the logger's own counts as well. It is for a logger that is shared with the rest
// of the program. nil or not given: all.
func Level(least slog.Leveler) Option { return func(o *output) { o.level = least } }

// Key makes of a key what is logged in its place: a hash, the class it belongs to, or "" for no key at all. It must be safe
// for concurrent use. nil or not given: the key, as far as it fits.
func Key(f func(key string) string) Option { return func(o *output) { o.key = f } }

// LongWait is after how long a call of Lock that waits for another holder is reported. Zero, less, or not given:
// [DefaultLongWait].
func LongWait(d time.Duration) Option { return func(o *output) { o.longWait = d } }

func (o *output) enabled(ctx context.Context, level slog.Level) bool {
	return (o.level == nil || level >= o.level.Level()) && o.logger.Enabled(ctx, level)
}

// log is for a level that is enabled.
func (o *output) log(ctx context.Context, level slog.Level, message string, attrs ...slog.Attr) {
	o.logger.LogAttrs(ctx, level, message, attrs...)
}

// keyAttr returns the attribute for key; an empty one, which handlers leave out, for none.
func (o *output) keyAttr(key string) slog.Attr {
	if o.key != nil {
		if key = o.key(key); key == "" {
			return slog.Attr{}
		}
	}
	if len(key) > maxKey {
		cut := maxKey
		for cut > maxKey-utf8.UTFMax && !utf8.RuneStart(key[cut]) {
			cut--
		}
		key = key[:cut] + "…"
	}
	return slog.String("key", key)
}
