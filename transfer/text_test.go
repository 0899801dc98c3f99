package transfer_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strings"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/transfer"
)

func exported(t *testing.T, key string) transfer.Text {
	t.Helper()
	l := memory.New()
	t.Cleanup(func() { _ = l.Close() })
	lease, err := l.TryLock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := transfer.Export(t.Context(), lease, 0)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTextIsReadBack(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"k", "a b\n", "{tag}:\xff\x00", strings.Repeat("k", locker.MaxKey)} {
		text := exported(t, key)
		read, err := transfer.Parse(" " + text.Secret() + "\r\n")
		if err != nil || read != text || read.Key() != key {
			t.Errorf("the text of %.20q is read as that of %.20q, %v", key, read.Key(), err)
		}
	}
}

// Whatever a program does to print, log or encode a Text, its secret is not in it.
func TestTextIsNotShown(t *testing.T) {
	t.Parallel()
	text := exported(t, "key-of-the-lock")
	var shown bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T"} {
		fmt.Fprintf(&shown, verb+"\n", text)
		fmt.Fprintf(&shown, verb+"\n", &text)
		for _, in := range []any{
			struct{ Text transfer.Text }{text}, struct{ t transfer.Text }{text}, &struct{ t transfer.Text }{text},
			struct{ t *transfer.Text }{&text}, struct{ t []transfer.Text }{[]transfer.Text{text}},
			struct{ t any }{text}, struct{ t map[string]any }{map[string]any{"t": text}},
			struct{ t map[transfer.Text]bool }{map[transfer.Text]bool{text: true}}, []transfer.Text{text},
			struct{ t struct{ transfer.Text } }{},
		} {
			fmt.Fprintf(&shown, verb+"\n", in)
		}
	}
	for _, logger := range []*slog.Logger{
		slog.New(slog.NewTextHandler(&shown, nil)), slog.New(slog.NewJSONHandler(&shown, nil)),
	} {
		logger.Info("exported", "text", text, "in", struct{ Text transfer.Text }{text}, "at", &text,
			"unexported", struct{ t []transfer.Text }{[]transfer.Text{text}})
	}
	if err := json.NewEncoder(&shown).Encode(map[string]any{"text": text}); err != nil {
		t.Error(err)
	}
	_, code, _ := strings.Cut(text.Secret(), ".")
	whole, err := base64.RawURLEncoding.DecodeString(code)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{code[:12], string(whole[:12]), "key-of", fmt.Sprintf("%x", whole[:12])} {
		if out := shown.String(); strings.Contains(out, part) {
			t.Errorf("%q of the secret is in\n%s", part, out)
		}
	}
}

// The zero value has nothing, and texts are equal if they stand for the same export.
func TestTextsAreCompared(t *testing.T) {
	t.Parallel()
	var none transfer.Text
	if none.Key() != "" || none.Secret() != "" || none.String() == "" {
		t.Errorf("the zero value has %q, %q", none.Key(), none.Secret())
	}
	one, other := exported(t, "k"), exported(t, "k")
	read, err := transfer.Parse(one.Secret())
	if err != nil || read != one || one == other || one == none {
		t.Error("texts are not compared by what they stand for", err)
	}
}

// The owner value of a lease, which programs and stores show, makes no text.
func TestOwnerValueOfALeaseMakesNoText(t *testing.T) {
	t.Parallel()
	l := memory.New()
	defer l.Close()
	lease, err := l.TryLock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	b := []byte(lease.Token() + lease.Key())
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	_, err = transfer.Parse("locker-lease-1." + base64.RawURLEncoding.EncodeToString(b))
	if !errors.Is(err, transfer.ErrText) || !strings.Contains(err.Error(), "owner value") {
		t.Error(err)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// What is no text is refused with the reason, and is not in the error.
func TestTextThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	secret := exported(t, "k").Secret()
	_, code, _ := strings.Cut(secret, ".")
	for what, want := range map[string]string{
		"":                                  "begin",
		code:                                "begin",
		secret[:len(secret)-3]:              "damaged",
		secret + "x":                        "damaged",
		"locker-lease-1.":                   "damaged",
		"locker-lease-2." + code:            `the format "2"`,
		exported(t, "k").String():           "Secret",
		strings.Replace(secret, ".", "", 1): "begin",
	} {
		_, err := transfer.Parse(what)
		switch {
		case !errors.Is(err, transfer.ErrText) || !errors.Is(err, locker.ErrInvalid):
			t.Errorf("%.20q: %v", what, err)
		case !strings.Contains(err.Error(), want):
			t.Errorf("%.20q: the reason is not in %q", what, err)
		case strings.Contains(err.Error(), code[:12]):
			t.Errorf("%.20q: it is in %q", what, err)
		}
	}
}
