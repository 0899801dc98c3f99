package label

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for _, good := range []string{"", "web-7:4211", "nightly report", "büro 3", `"q"`, Default,
		strings.Repeat("x", Max)} {
		if err := Check(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"a|b", "a+", "a\nb", "a\x00", "\x1b[31m", "\x7f", "\u202e", "\xff", "a\u00a0b",
		strings.Repeat("x", Max+1)} {
		if Check(bad) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestOfProcess(t *testing.T) {
	long := strings.Repeat("a", 40) + strings.Repeat("b", 40)
	for host, want := range map[string]string{
		"web-7":       "web-7:4211",
		"a|b+c d\n":   "a-b-c-d-:4211",
		"büro":        "b-ro:4211",
		long[10:69]:   long[10:69] + ":4211",
		long:          long[:28] + "…" + long[80-28:] + ":4211",
		"":            ":4211",
		"\xff\x1b[0m": "--[0m:4211",
	} {
		got := ofProcess(host, 4211)
		if got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
		if err := Check(got); err != nil {
			t.Errorf("%q: %q: %v", host, got, err)
		}
	}
	if got := ofProcess(long, 1<<31-1); len(got) > Max || Check(got) != nil {
		t.Errorf("%q has %d bytes", got, len(got))
	}
}

// A label that was written by another program must not change the terminal.
func TestShow(t *testing.T) {
	for text, want := range map[string]string{
		"web-7:4211":     "web-7:4211",
		"nightly report": `"nightly report"`,
		`a"b`:            `"a\"b"`,
		"\x1b[31m":       `"\x1b[31m"`,
		"":               `""`,
	} {
		if got := Show(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
