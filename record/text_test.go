package record_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/record"
)

const sound = `{"locker":1,"state":"held","owner":"o","label":"l","token":5,"last":7,"length_ms":1000,"nonce":"n"}`

func TestTexts(t *testing.T) {
	for _, text := range []string{
		sound, record.Text("o", 1, 128, time.Hour),
		`{"nonce": "n", "last": 7, "state": "free", "locker": 1}` + "\n",
		`{"locker":1,"state":"kept","owner":"o","token":5,"last":5,"length_ms":1,"nonce":"n"}`,
		strings.Replace(sound, `,"nonce"`, `,"clock":"a","ends_ms":4398046511104,"nonce"`, 1),
	} {
		if err := record.Parses([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for what, text := range map[string]string{
		"nothing":                      "",
		"another text":                 "not a lock",
		"other JSON":                   `{"holder":"web-7"}`,
		"null":                         "null",
		"a newer format":               strings.Replace(sound, `"locker":1`, `"locker":2`, 1),
		"a field that is not known":    strings.Replace(sound, `"locker":1`, `"locker":1,"readers":3`, 1),
		"something behind it":          sound + "{}",
		"a part":                       sound[:len(sound)-1],
		"no nonce":                     strings.Replace(sound, `,"nonce":"n"`, "", 1),
		"another state":                strings.Replace(sound, `"held"`, `"leased"`, 1),
		"no owner":                     strings.Replace(sound, `"owner":"o",`, "", 1),
		"no tokens":                    `{"locker":1,"state":"free","nonce":"n"}`,
		"no token":                     strings.Replace(sound, `"token":5,`, "", 1),
		"a token past the last":        strings.Replace(sound, `"token":5`, `"token":8`, 1),
		"a token past the end":         strings.Replace(sound, `"last":7`, `"last":18446744073709551615`, 1),
		"a negative token":             strings.Replace(sound, `"token":5`, `"token":-5`, 1),
		"no length":                    strings.Replace(sound, `"length_ms":1000,`, "", 1),
		"a length that is too long":    strings.Replace(sound, "1000", "172800001", 1),
		"an end without a clock":       strings.Replace(sound, `,"nonce"`, `,"ends_ms":5,"nonce"`, 1),
		"a clock without an end":       strings.Replace(sound, `,"nonce"`, `,"clock":"a","nonce"`, 1),
		"an end before the beginning":  strings.Replace(sound, `,"nonce"`, `,"clock":"a","ends_ms":-5,"nonce"`, 1),
		"an end in 140 years":          strings.Replace(sound, `,"nonce"`, `,"clock":"a","ends_ms":4398046511105,"nonce"`, 1),
		"a length that is not a count": strings.Replace(sound, "1000", "1.5", 1),
	} {
		if err := record.Parses([]byte(text)); !errors.Is(err, locker.ErrForeignKey) {
			t.Errorf("%s: got %v, want ErrForeignKey", what, err)
		}
	}
}

// What processes with other releases of the library read.
func TestWrittenTexts(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		look := func(want string) {
			t.Helper()
			text := regexp.MustCompile(`\b([0-9A-Z]{26}|[0-9A-Z]{10})\b`).ReplaceAllString(s.Text("k"), "N")
			if text = regexp.MustCompile(`9[0-9]{14}`).ReplaceAllString(text, "9"); text != want {
				t.Errorf("the text is\n%s\nwant\n%s", text, want)
			}
		}
		for _, clock := range []string{none, "a"} {
			b := machine(t, s)(clock)
			ends := func(hour int) string {
				if clock == none {
					return ""
				}
				return fmt.Sprintf(`"clock":"a","ends_ms":36%05d,`, hour)
			}
			s.Delete("k")
			req := request(ttl)
			req.Token, req.Label = "owner", "web-7"
			g, err := b.Acquire(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			req.Fence, req.Private, req.Keep = g.Fence, g.Private, time.Minute
			look(`{"locker":1,"state":"held","owner":"owner","label":"web-7","token":9,"last":9,"length_ms":500,` + ends(500) +
				`"nonce":"N"}`)
			time.Sleep(100 * time.Millisecond)
			if err := b.Extend(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			look(`{"locker":1,"state":"held","owner":"owner","label":"web-7","token":9,"last":9,"length_ms":500,` + ends(600) +
				`"age_ms":100,"nonce":"N"}`)
			if err := b.Release(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			look(`{"locker":1,"state":"kept","owner":"owner","token":9,"last":9,"length_ms":60000,` + ends(60100) +
				`"nonce":"N"}`)
			time.Sleep(record.Patience(time.Minute))
			req.Keep = 0
			if g, err = b.Acquire(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			req.Fence, req.Private = g.Fence, g.Private
			if err := b.Release(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			look(`{"locker":1,"state":"free","owner":"owner","last":9,"nonce":"N","over":"N"}`)
		}
	})
}

// Names have few characters, in one case, and no two keys have the same one.
func TestNames(t *testing.T) {
	long := strings.Repeat("x", 200)
	for key, want := range map[string]string{
		"orders-42_a": "orders-42_a", "A": "=41", "a": "a", "=41": "=3d41", "jobs/nightly": "jobs=2fnightly",
		"ä": "=c3=a4", "\x00": "=00", ".": "=2e", "..": "=2e=2e", long: long,
	} {
		if got := record.NameOf(key); got != want {
			t.Errorf("%q has the name %q, want %q", key, got, want)
		}
	}
	hashed := record.NameOf(long + "x")
	if !strings.HasPrefix(hashed, "=s") || len(hashed) != 66 || hashed == record.NameOf(long+"y") {
		t.Errorf("a long key has the name %q", hashed)
	}
}

// Whatever a record has, an attempt takes the lock with a greater token, finds it held, or leaves the record alone.
func FuzzTexts(f *testing.F) {
	for _, text := range []string{
		sound, record.Text("o", 1, 128, time.Hour), record.Free(9), "", "null", "[]", `{"locker":2}`,
		`{"locker":1,"state":"kept","owner":"o","token":5,"last":5,"length_ms":1,"nonce":"n","over":"m","age_ms":-1}`,
		`{"locker":1,"state":"held","owner":"mine","token":5,"last":9007199254740992,"length_ms":1,"nonce":"n"} `,
		`{"locker":1,"state":"free","last":9007199254740992,"nonce":"n"}`,
		`{"locker":1,"state":"free","last":18446744073709551615,"nonce":"n"}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := recordstore.New()
		s.Put("k", string(text))
		b := record.NewBackend(s)
		defer b.Close()
		last, foreign := record.Last(text)
		g, err := b.Acquire(t.Context(), backend.Request{Key: "k", Token: "mine", TTL: time.Minute})
		switch {
		case foreign != nil:
			if !errors.Is(err, locker.ErrForeignKey) || s.Text("k") != string(text) {
				t.Errorf("no record (%v): got %v, and %q", foreign, err, s.Text("k"))
			}
		case err == nil:
			issued, err := record.Last([]byte(s.Text("k")))
			if err != nil || issued < last || g.Fence+uint64(g.Fences)-1 != issued {
				t.Errorf("after the token %d: got %d tokens from %d, and %q, %v", last, g.Fences, g.Fence, s.Text("k"), err)
			}
		case errors.Is(err, locker.ErrUnavailable) && last == 1<<53:
		case !errors.Is(err, locker.ErrHeld):
			t.Errorf("got %v", err)
		}
	})
}

func FuzzNames(f *testing.F) {
	f.Add("a", "A")
	f.Add(strings.Repeat("/", 67), strings.Repeat("/", 66)+"0")
	f.Fuzz(func(t *testing.T, a, b string) {
		if a == "" || b == "" {
			return
		}
		one, two := record.NameOf(a), record.NameOf(b)
		if a != b && strings.EqualFold(one, two) {
			t.Errorf("%q and %q have the name %q", a, b, one)
		}
		if len(one) > 200 || strings.Trim(one, "abcdefghijklmnopqrstuvwxyz0123456789-_=") != "" {
			t.Errorf("%q has the name %q", a, one)
		}
	})
}
