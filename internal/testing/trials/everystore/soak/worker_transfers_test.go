package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/transfer"
)

// transfers resumes a lock that somebody has passed on, or acquires one, and passes it on, mostly. Texts are files in a
// directory that all processes have. Two may read one at once, or one after the other.
func (w *worker) transfers(ctx context.Context) {
	var lease locker.Lease
	var err error
	began, name, key := now(), w.name(), fmt.Sprint(passedOn, rand.IntN(transferred))
	call, cancel := context.WithTimeout(ctx, limit)
	secret, text := w.text()
	switch {
	case secret != "":
		w.during("Resume", func() { lease, err = transfer.Resume(call, w.Locker, text) })
	case rand.IntN(2) == 0:
		w.during("TryLock", func() { lease, err = w.TryLock(call, key) })
	default:
		w.during("Lock", func() { lease, err = w.Lock(call, key) })
	}
	cancel()
	if err != nil {
		pause()
		return
	}
	tell := func(what string, at int64) {
		w.say(word{What: what, Kind: lock, Key: lease.Key(), Lease: name, Owner: lease.Token(), Fence: lease.Fence(),
			Text: secret, Began: began, At: at})
	}
	tell(has, now())
	rely(lease, rand.N(10*time.Millisecond), tell)
	if rand.IntN(10) == 0 {
		w.verify(ctx, lease, tell)
	}
	if rand.IntN(5) == 0 {
		w.during("Unlock", func() { _ = lease.Unlock(ctx) })
		return
	}
	w.during("Export", func() { text, err = transfer.Export(ctx, lease, 0) })
	if err == nil {
		w.passOn(text)
	} else if !errors.Is(err, locker.ErrNotHeld) && rand.IntN(2) == 0 {
		w.during("Unlock", func() { _ = lease.Unlock(ctx) })
	}
	if rand.IntN(5) == 0 { // it must not be able to
		rely(lease, 20*time.Millisecond, tell)
	}
}

// text returns one of the texts that are there, and its secret, or none. Mostly it takes it away.
func (w *worker) text() (secret string, text transfer.Text) {
	files, err := os.ReadDir(w.Texts)
	if err != nil {
		panic(err)
	}
	if len(files) == 0 {
		return "", text
	}
	path := filepath.Join(w.Texts, files[rand.IntN(len(files))].Name())
	read, err := os.ReadFile(path)
	if rand.IntN(4) > 0 {
		_ = os.Remove(path)
	}
	if err != nil { // somebody else has taken it
		return "", text
	}
	if text, err = transfer.Parse(string(read)); err != nil {
		panic(err)
	}
	return string(read), text
}

// passOn writes a text where others find it.
func (w *worker) passOn(text transfer.Text) {
	path := filepath.Join(w.Texts, w.name())
	hidden := filepath.Join(filepath.Dir(w.Audit), filepath.Base(path))
	if err := os.WriteFile(hidden, []byte(text.Secret()), 0o600); err != nil {
		panic(err)
	}
	if err := os.Rename(hidden, path); err != nil {
		panic(err)
	}
}
