package kuberneteslock_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/kuberneteslock"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/aws"
	"github.com/golocker/locker/internal/testing/datetest"
	"github.com/golocker/locker/internal/testing/kubetest"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/record/recordtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// prefix is that of the keys.
const prefix = "lock:"

// objectOf returns the name of the Lease of a key.
func objectOf(key string) string { return kuberneteslock.ObjectName(record.NameOf(prefix + key)) }

// open returns a store with a client of its own, as a process has it.
func open(t testing.TB, s *kubetest.Server) *kuberneteslock.Store {
	t.Helper()
	opened, err := kuberneteslock.Open(&kuberneteslock.Config{Kubeconfig: s.Kubeconfig("")})
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// client returns a Client with a store of its own, which ends with the test.
func client(t testing.TB, s *kubetest.Server, opts ...record.Option) *locker.Client {
	t.Helper()
	l := record.New(open(t, s), append(opts, record.Prefix(prefix))...)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// left lists the Leases of locks that are taken, and were written less than their length ago.
func left(s *kubetest.Server) (names []string) {
	texts, at := s.Leases()
	for name, text := range texts {
		d, err := record.Describe([]byte(recordOf(text)))
		if err != nil || d.State != inspect.Free && time.Since(at[name]) < d.Length {
			names = append(names, name)
		}
	}
	return names
}

// lease is a Lease, as far as tests look at it.
type lease struct {
	Metadata struct {
		Annotations map[string]string
	}
	Spec struct {
		HolderIdentity       *string
		LeaseDurationSeconds int
		AcquireTime          time.Time
		RenewTime            time.Time
		LeaseTransitions     int
	}
}

func parse(t testing.TB, text string) (l lease) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return l
}

// recordOf returns the text of the record in a Lease.
func recordOf(text string) string {
	var l lease
	_ = json.Unmarshal([]byte(text), &l)
	return l.Metadata.Annotations[kuberneteslock.Annotation]
}

// electors is a Lease of an elector of client-go.
func electors(name string) string {
	return `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"` + name + `"},` +
		`"spec":{"holderIdentity":"operator-1_6f","leaseDurationSeconds":15,"leaseTransitions":3}}`
}

var harness = conformance.Harness{Store: func(t testing.TB) conformance.Store {
	s := kubetest.Start(t)
	kubeconfig := s.Kubeconfig("")
	return conformance.Store{
		Open: func() backend.Backend {
			own, err := kuberneteslock.Open(&kuberneteslock.Config{Kubeconfig: kubeconfig})
			if err != nil {
				t.Error(err)
			}
			return record.NewBackend(own, record.Prefix(prefix), record.Poll(50*time.Millisecond))
		},
		Delete:    func(key string) { s.Delete(objectOf(key)) },
		Hang:      s.Hang,
		Down:      s.Down,
		LoseReply: s.LoseReply,
		Restart:   s.Restart,
		Left:      func() []string { return left(s) },
		Foreign: func(key string) (intact func() bool) {
			s.Put(electors(objectOf(key)))
			before := s.Lease(objectOf(key))
			return func() bool { return s.Lease(objectOf(key)) == before }
		},
	}
}}

func TestConformance(t *testing.T) { conformance.RunBackend(t, harness) }

// A writer acquires 64 locks at once, so these properties do not run beside the others.
func TestSemaphoresReadersAndWriters(t *testing.T) {
	conformance.RunSemaphore(t, harness)
	conformance.RunRWLock(t, harness)
}

func TestRulesOfStores(t *testing.T) {
	recordtest.Run(t, func(t testing.TB, kubeconfig string) (record.Store, string) {
		if kubeconfig == "" {
			kubeconfig = kubetest.Start(t).Kubeconfig("")
		}
		s, err := kuberneteslock.Open(&kuberneteslock.Config{Kubeconfig: kubeconfig})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s, kubeconfig
	})
}

// wire sends requests by a client.
type wire struct{ http.RoundTripper }

// Do implements aws.Sender.
func (w wire) Do(r *http.Request) (*http.Response, error) { return w.RoundTrip(r) }

// sender is the transport of a client, which closes the idle connections of within.
type sender struct {
	aws.Sender
	within http.RoundTripper
}

// WrappedRoundTripper is for client-go.
func (s sender) WrappedRoundTripper() http.RoundTripper { return s.within }

// RoundTrip implements http.RoundTripper. An answer that a server has failed says that the request is to be repeated.
func (s sender) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := s.Do(r)
	if err == nil && answer.StatusCode >= http.StatusInternalServerError {
		answer.Header.Set("Retry-After", "0")
	}
	return answer, err
}

// Processes that look once take locks by the dates of answers, and so of errors such as that there is no Lease.
func TestDates(t *testing.T) {
	t.Parallel()
	kubeconfig := kubetest.Start(t).Kubeconfig("")
	datetest.Run(t, func(t testing.TB, via func(aws.Sender) aws.Sender) record.Store {
		s, err := kuberneteslock.OpenVia(&kuberneteslock.Config{Kubeconfig: kubeconfig},
			func(connections http.RoundTripper) http.RoundTripper {
				return sender{via(wire{connections}), connections}
			})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

// The times of API servers are not used unless the user says by how much they differ, and never by a client that does
// not show them.
func TestClockIsChosen(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	store := open(t, s)
	defer store.Close()
	for name, c := range map[string]struct {
		store *kuberneteslock.Store
		opts  []record.Option
		want  bool
	}{
		"by default":            {store, nil, false},
		"with a skew":           {store, []record.Option{record.ClockSkew(time.Second)}, true},
		"a client of one's own": {kuberneteslock.NewStore(nil), []record.Option{record.ClockSkew(time.Second)}, false},
	} {
		if got := record.NewBackend(c.store, c.opts...).Capabilities().CountsTime; got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
