package logging

import (
	"context"
	"log/slog"
	"time"
	"unicode/utf8"
)

// DefaultLongWait is how long a call waits before that is logged, without the option [LongWait].
const DefaultLongWait = time.Minute

// maxKey is how many bytes of a key are logged. It is the same in the texts of errors.
const maxKey = 64

// Option changes the middleware that [New] returns.
type Option func(*output)

// output has the logger and the values of the options. It is shared by all calls.
type output struct {
	logger   *slog.Logger
	level    slog.Leveler
	key      func(string) string
	longWait time.Duration
}

// Level sets the lowest level that is logged, in addition to that of the logger. It is for a logger that is shared with
// the rest of the program. The default, also if least is nil, is the level of the logger.
func Level(least slog.Leveler) Option { return func(o *output) { o.level = least } }

// Key sets a function whose result is logged instead of the key, such as a hash or a class of keys. If the result is
// empty, no key is logged. f must be safe for concurrent use. The default, also if f is nil, is the key itself. Long
// values are cut off.
func Key(f func(key string) string) Option { return func(o *output) { o.key = f } }

// LongWait sets how long a call of Lock waits for another holder before that is logged. The default, also if d is not
// positive, is [DefaultLongWait].
func LongWait(d time.Duration) Option { return func(o *output) { o.longWait = d } }

func (o *output) enabled(ctx context.Context, level slog.Level) bool {
	return (o.level == nil || level >= o.level.Level()) && o.logger.Enabled(ctx, level)
}

// log writes a record. The level must be enabled.
func (o *output) log(ctx context.Context, level slog.Level, message string, attrs ...slog.Attr) {
	o.logger.LogAttrs(ctx, level, message, attrs...)
}

// keyAttr returns the attribute for key. If no key is to be logged, it is an empty one, which handlers omit.
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
