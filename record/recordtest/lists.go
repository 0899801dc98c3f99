package recordtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker/record"
)

// inPages is how many records have names that begin with the prefix that is listed.
const inPages = 230

func listsAreComplete(t testing.TB, open opener) {
	cs := clients(t, open, 2)
	l, ok := cs[0].s.(record.Lister)
	if !ok {
		return
	}
	if _, _, err := l.List(t.Context(), "", ""); errors.Is(err, errors.ErrUnsupported) {
		t.Log("the Store does not list as it was made: ", err)
		return
	}
	const prefix = "a_"
	var names []string
	for i := range inPages {
		names = append(names, fmt.Sprint(prefix, i))
	}
	names = append(names, prefix, prefix+"-", prefix+"=2e", prefix+"=t5", prefix+"_")
	all := map[string][]string{} // the texts that each has
	versions := map[string]string{}
	for i, name := range names {
		first := text("a", i)
		all[name] = []string{string(first)}
		versions[name] = cs[i%2].writes(name, "", first)
	}
	for i, other := range []string{"a", "a-", "a=2e", "aa_1", "b_1", "ab1", "=sa_", "=2e"} {
		cs[i%2].writes(other, "", text("b", i))
	}
	n := 0
	seen := cs[1].list(prefix, func() { // the client whose own writes have ended
		name := names[n*97%len(names)] // and others write meanwhile
		next := text("c", n)
		all[name] = append(all[name], string(next))
		versions[name] = cs[0].writes(name, versions[name], next)
		n++
	})
	for name, found := range seen {
		texts, expected := all[name]
		ok := found == nil
		for _, text := range texts {
			ok = ok || same([]byte(text), found)
		}
		if !expected || !ok {
			t.Errorf("List: expected %q to have one of the texts %q, seen %s", name, texts, found)
		}
	}
	for _, name := range names {
		if _, ok := seen[name]; !ok {
			t.Errorf("List: expected the record %q, which was there all the time, seen %d others", name, len(seen))
		}
	}
	if others := cs[0].list("=", nil); len(others) != 2 {
		t.Errorf("List: expected two records whose names begin with =, seen %d", len(others))
	}
	if all := cs[0].list("", nil); len(all) != len(names)+8 {
		t.Errorf("List of all names: expected %d, seen %d", len(names)+8, len(all))
	}
	ended, cancel := context.WithTimeout(t.Context(), limit)
	cancel()
	start := time.Now()
	_, _, err := cs[0].s.(record.Lister).List(ended, "", "")
	if took := time.Since(start); !errors.Is(err, context.Canceled) || took > limit/10 {
		t.Errorf("List with a context that has ended: expected its error at once, seen %v after %v", err, took)
	}
}

// list returns the texts of all records of a prefix by their names. page is called after each page.
func (c client) list(prefix string, page func()) map[string][]byte {
	c.t.Helper()
	seen, from := make(map[string][]byte), ""
	for {
		ctx, cancel := context.WithTimeout(c.t.Context(), limit)
		found, next, err := c.s.(record.Lister).List(ctx, prefix, from)
		cancel()
		if err != nil {
			c.t.Fatalf("List: expected no error, seen %v", err)
		}
		for _, r := range found {
			seen[r.Name] = r.Text
		}
		if page != nil {
			page()
		}
		if next == "" {
			return seen
		}
		from = next
	}
}
