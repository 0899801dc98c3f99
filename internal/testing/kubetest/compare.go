//go:build unix

package kubetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker/record"
)

// Compare sends requests in a random order to two empty stores, with versions that are right, old, or of another
// record, and fails if the stores answer differently. One of them has a [Server], and the other one something that
// others have made. remove deletes a record of both.
func Compare(tb testing.TB, stores [2]record.Store, remove func(name string)) {
	tb.Helper()
	p := pair{tb: tb, stores: stores, versions: [2]map[string][]string{{}, {}}}
	names := []string{"a", "b", "c"}
	rng := rand.New(rand.NewPCG(1, 2))
	done := map[string]int{}
	for n := range 3000 {
		name := names[rng.IntN(len(names))]
		text := fmt.Sprintf(`{"locker":1,"state":"free","last":1,"nonce":"%d"}`, n)
		switch kind := rng.IntN(20); {
		case kind == 0:
			remove(name)
			done["delete"]++
		case kind < 6:
			p.do("Get", name, func(ctx context.Context, i int) (string, string, error) {
				got, version, err := stores[i].Get(ctx, name)
				return string(got), version, err
			})
			done["get"]++
		case kind < 9:
			p.do("Create", name, func(ctx context.Context, i int) (string, string, error) {
				version, err := stores[i].Create(ctx, name, []byte(text))
				return text, version, err
			})
			done["create"]++
		default:
			of := name
			if kind == 19 {
				of = names[rng.IntN(len(names))]
			}
			known := len(p.versions[0][of])
			if known == 0 {
				break
			}
			at := known - 1 - min(rng.IntN(4)*rng.IntN(2), known-1) // mostly the last one
			p.do("Replace", name, func(ctx context.Context, i int) (string, string, error) {
				version, err := stores[i].Replace(ctx, name, p.versions[i][of][at], []byte(text))
				return text, version, err
			})
			done["replace"]++
		}
	}
	tb.Logf("requests: %v", done)
}

// pair is two stores in which the same was done.
type pair struct {
	tb       testing.TB
	stores   [2]record.Store
	versions [2]map[string][]string // that each record has had, in both at the same places
}

// do makes a request to both stores, and compares the outcomes.
func (p *pair) do(
	what, name string, request func(ctx context.Context, i int) (text, version string, err error),
) {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(p.tb.Context(), 30*time.Second)
	defer cancel()
	var said [2]string
	for i := range p.stores {
		text, version, err := request(ctx, i)
		said[i] = outcome(version, err)
		if err != nil || version == "" {
			continue
		}
		known := p.versions[i][name]
		at := slices.Index(known, version)
		if at < 0 {
			at = len(known)
			p.versions[i][name] = append(known, version)
		}
		said[i] += fmt.Sprintf(" %s, version %d", text, at)
	}
	if said[0] != said[1] {
		p.tb.Fatalf("%s: the one store says %q, and the other one %q", what, said[0], said[1])
	}
}

// outcome is that of a request, as far as two stores must agree.
func outcome(version string, err error) string {
	switch {
	case errors.Is(err, record.ErrConflict):
		return "conflict"
	case err != nil:
		return "error"
	case version == "":
		return "none"
	}
	return "done"
}
