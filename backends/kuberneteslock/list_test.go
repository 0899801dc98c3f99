package kuberneteslock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/kuberneteslock"
	"github.com/golocker/locker/internal/testing/kubetest"
	"github.com/golocker/locker/record"
)

// holds acquires n locks, which are enough for several pages.
func holds(t *testing.T, l *locker.Client, n int) map[string]locker.Lease {
	t.Helper()
	held := make(map[string]locker.Lease)
	for i := range n {
		key := fmt.Sprintf("k%03d", i)
		lease, err := l.TryLock(t.Context(), key, locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		held[key] = lease
	}
	return held
}

// An API server forgets what was true at the beginning of a list after some minutes.
func TestListsGoOnWhenTheirTokenHasExpired(t *testing.T) {
	t.Parallel()
	for name, forgets := range map[string]func(s *kubetest.Server){
		"and it tells how to go on": (*kubetest.Server).Compact,
		"and it does not": func(s *kubetest.Server) {
			n := 0
			s.Inject(func(r kubetest.Request) (f kubetest.Fault) {
				if n++; r.Method == "LIST" && n == 1 {
					f.Answer = &kubetest.Status{Code: http.StatusGone, Reason: "Expired", Message: "too old"}
				}
				return f
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.Start(t)
			l := client(t, s)
			const all = 250
			holds(t, l, all)
			seen, n := make(map[string]bool), 0
			for found, err := range client(t, s).List(t.Context(), "k") {
				if err != nil {
					t.Fatalf("after %d locks: %v", n, err)
				}
				if seen[found.Key] = true; n == 50 {
					forgets(s)
				}
				n++
			}
			if len(seen) != all {
				t.Errorf("%d of %d locks", len(seen), all)
			}
		})
	}
}

// A page that continues a list has what was true at its beginning.
func TestPagesOfASnapshotAreReadAnew(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	held := holds(t, client(t, s), 150)
	store := open(t, s)
	_, next, err := store.List(t.Context(), "", "")
	if err != nil || next == "" {
		t.Fatalf("a second page %q, %v", next, err)
	}
	if err := held["k149"].Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	page, _, err := store.List(t.Context(), "", next)
	if err != nil || len(page) != 50 {
		t.Fatalf("%d records, %v", len(page), err)
	}
	for _, r := range page {
		if r.Text != nil {
			t.Errorf("%s: a text that may be old: %s", r.Name, r.Text)
		}
	}
}

// The names of Leases tell those of their records.
func TestListsKnowTheNamesOfRecords(t *testing.T) {
	t.Parallel()
	store := open(t, kubetest.Start(t))
	want := make(map[string]string)
	for _, name := range []string{
		"a", "a-b", "-", "a_b", "=2ekey", "my=2ekey", "x=2e", "=st", "x", "xx-", "a=t", "a=t59", strings.Repeat("_", 200),
	} {
		text := fmt.Sprintf(`{"locker":1,"state":"free","last":1,"nonce":%q}`, name)
		if _, err := store.Create(t.Context(), name, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if len(kuberneteslock.ObjectName(name)) < 250 && !strings.HasPrefix(kuberneteslock.ObjectName(name), "sha256") {
			want[name] = text
		}
	}
	page, _, err := store.List(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	hashes := 0
	for _, r := range page {
		if text, ok := want[r.Name]; ok && text == string(r.Text) {
			delete(want, r.Name)
		} else if strings.HasPrefix(r.Name, "=s") {
			hashes++
		} else {
			t.Errorf("the record %q: %s", r.Name, r.Text)
		}
	}
	if len(want) > 0 || hashes != 1 {
		t.Errorf("expected all, seen not %v, and %d hashes", want, hashes)
	}
}

func TestAClientWithoutListCannotList(t *testing.T) {
	t.Parallel()
	l := record.New(kuberneteslock.NewStore(noList{}))
	defer l.Close()
	for _, err := range l.List(t.Context(), "") {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a lock, or %v", err)
		}
	}
}

// noList is a client for Leases with the methods that it has to have.
type noList struct{}

func (noList) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	return nil, errors.ErrUnsupported
}

func (noList) Create(
	context.Context, *coordinationv1.Lease, metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	return nil, errors.ErrUnsupported
}

func (noList) Update(
	context.Context, *coordinationv1.Lease, metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	return nil, errors.ErrUnsupported
}
