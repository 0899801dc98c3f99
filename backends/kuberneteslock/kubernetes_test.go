package kuberneteslock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/kuberneteslock"
	"github.com/golocker/locker/internal/testing/kubetest"
	"github.com/golocker/locker/record"
)

// kubectl get leases prints who has a lock, and since when.
func TestLeasesShowLocks(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	l := client(t, s)
	shown := func(when, holder string, seconds, transitions int) lease {
		t.Helper()
		text := s.Lease(objectOf("k"))
		got := parse(t, text)
		if got.Spec.HolderIdentity == nil || *got.Spec.HolderIdentity != holder ||
			got.Spec.LeaseDurationSeconds != seconds || got.Spec.LeaseTransitions != transitions ||
			time.Since(got.Spec.RenewTime).Abs() > time.Minute {
			t.Errorf("%s: %s", when, text)
		}
		return got
	}
	opts := []locker.Option{locker.TTL(time.Hour + time.Millisecond), locker.Label("web-7:42"), locker.NoRenewal()}
	for round := range 3 {
		held, err := l.TryLock(t.Context(), "k", opts...)
		if err != nil {
			t.Fatal(err)
		}
		first := shown("acquired", "web-7:42", 3601, round+1)
		<-time.After(5 * time.Millisecond) // an age is in milliseconds
		if err := held.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
		second := shown("extended", "web-7:42", 3601, round+1)
		if !second.Spec.RenewTime.After(first.Spec.RenewTime) ||
			second.Spec.AcquireTime.Sub(first.Spec.AcquireTime).Abs() > time.Minute {
			t.Errorf("acquired and extended at %+v and %+v", first.Spec, second.Spec)
		}
		if err := held.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if free := shown("released", "", 1, round+1); !free.Spec.AcquireTime.IsZero() {
			t.Errorf("acquired and free: %+v", free.Spec)
		}
	}
	unnamed, err := l.TryLock(t.Context(), "k", locker.TTL(time.Minute), locker.Label(""))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unnamed.Unlock(context.Background()) }()
	if got := parse(t, s.Lease(objectOf("k"))); len(*got.Spec.HolderIdentity) != 8 {
		t.Errorf("without a label: %+v", got.Spec)
	}
}

// The API server refuses a Lease with a negative number.
func TestTransitionsDoNotOverflow(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	l := client(t, s)
	for _, transitions := range []any{math.MaxInt32 - 1, math.MaxInt32, nil} {
		held, err := l.TryLock(t.Context(), "k", locker.TTL(locker.MaxTTL), locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		if err := held.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		change(t, s, "k", map[string]any{"leaseTransitions": transitions})
	}
	if held, err := l.TryLock(t.Context(), "k"); err != nil {
		t.Errorf("a Lease without leaseTransitions: %v", err)
	} else {
		_ = held.Unlock(t.Context())
	}
}

// change replaces a part of the Lease of a key, behind the back of its holder.
func change(t *testing.T, s *kubetest.Server, key string, fields map[string]any) {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(s.Lease(objectOf(key))), &o); err != nil {
		t.Fatal(err)
	}
	for field, value := range fields {
		o["spec"].(map[string]any)[field] = value
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Put(string(text))
}

// An elector of client-go keeps the annotations of a Lease when it takes it.
func TestLeasesOfElectorsAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	l, other := client(t, s), client(t, s)
	held, err := l.TryLock(t.Context(), "k", locker.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	change(t, s, "k", map[string]any{"holderIdentity": "operator-1_6f"})
	taken := s.Lease(objectOf("k"))
	if err := held.Extend(t.Context()); !errors.Is(err, locker.ErrLost) {
		t.Errorf("Extend of a lock whose Lease an elector has taken: %v", err)
	}
	for _, c := range []locker.Locker{l, other} {
		if _, err := c.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrForeignKey) {
			t.Errorf("TryLock: %v", err)
		}
	}
	if now := s.Lease(objectOf("k")); now != taken {
		t.Errorf("the Lease of the elector was changed to %s", now)
	}
}

// Somebody who writes something else into a Lease takes the lock from nobody, and does not prolong it.
func TestOtherFieldsDoNotMatter(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	l, other := client(t, s), client(t, s)
	held, err := l.TryLock(t.Context(), "k", locker.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	change(t, s, "k", map[string]any{"leaseDurationSeconds": 7, "renewTime": "2001-02-03T04:05:06.000000Z"})
	if _, err := other.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrHeld) {
		t.Errorf("TryLock of a held lock: %v", err)
	}
	if err := held.Extend(t.Context()); err != nil {
		t.Errorf("Extend: %v", err)
	}
	change(t, s, "k", map[string]any{"leaseDurationSeconds": 7})
	if err := held.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	next, err := other.TryLock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	_ = next.Unlock(t.Context())
}

// A lock of a Lease that was deleted does not come back with the next renewal.
func TestRenewalsBringNothingBack(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	held, err := client(t, s).TryLock(t.Context(), "k", locker.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	s.Delete(objectOf("k"))
	if err := held.Extend(t.Context()); !errors.Is(err, locker.ErrLost) {
		t.Errorf("Extend of a lock whose Lease was deleted: %v", err)
	}
	if text := s.Lease(objectOf("k")); text != "" {
		t.Errorf("the Lease is there again: %s", text)
	}
}

// leaseStatus is an answer about the Lease of record k.
func leaseStatus(code int, reason string) kubetest.Status {
	return kubetest.Status{Code: code, Reason: reason, Kind: "leases", Name: "k", Message: reason}
}

// Answers that do not say whether the condition holds.
func TestOtherErrorsAreNoConflicts(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	store := open(t, s)
	defer store.Close()
	quick := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	text := []byte(`{"locker":1,"state":"free","last":1,"nonce":"n"}`)
	version, err := store.Create(t.Context(), "k", text)
	if err != nil {
		t.Fatal(err)
	}
	after := func(status kubetest.Status, wait time.Duration) kubetest.Status {
		status.RetryAfter = wait
		return status
	}
	quota := leaseStatus(http.StatusConflict, "Conflict")
	quota.Kind, quota.Name = "resourcequotas", "compute"
	gone := kubetest.Status{Code: http.StatusNotFound, Reason: "NotFound", Kind: "namespaces", Name: kubetest.Namespace}
	page := func(code int) kubetest.Status {
		return kubetest.Status{Code: code, Message: "a proxy's page", Page: true}
	}
	for what, status := range map[string]kubetest.Status{
		"an internal error":           leaseStatus(http.StatusInternalServerError, "InternalError"),
		"etcd elects a leader":        after(leaseStatus(http.StatusInternalServerError, "ServerTimeout"), 2*time.Second),
		"currently unable to handle":  leaseStatus(http.StatusServiceUnavailable, "ServiceUnavailable"),
		"too many requests":           after(leaseStatus(http.StatusTooManyRequests, "TooManyRequests"), time.Second),
		"a timeout":                   leaseStatus(http.StatusGatewayTimeout, "Timeout"),
		"forbidden":                   leaseStatus(http.StatusForbidden, "Forbidden"),
		"a webhook":                   {Code: http.StatusConflict, Reason: "Conflict", Message: "denied the request"},
		"a conflict of a quota":       quota,
		"the namespace is gone":       gone,
		"a proxy's page, not found":   page(http.StatusNotFound),
		"a proxy's page, a conflict":  page(http.StatusConflict),
		"a proxy's page, bad gateway": page(http.StatusBadGateway),
		"a page that says OK":         page(http.StatusOK),
		"a Status that says OK":       {Code: http.StatusOK, Reason: "", Message: "fine"},
	} {
		s.Inject(func(kubetest.Request) kubetest.Fault { return kubetest.Fault{Answer: &status} })
		for op, call := range map[string]func() (string, error){
			"Create":  func() (string, error) { return store.Create(quick(), "k", text) },
			"Replace": func() (string, error) { return store.Replace(quick(), "k", version, text) },
			"Get":     func() (string, error) { _, v, err := store.Get(quick(), "k"); return v, err },
		} {
			if v, err := call(); err == nil || errors.Is(err, record.ErrConflict) || v != "" {
				t.Errorf("%s: %s returns %q, %v, expected an error that is no conflict", what, op, v, err)
			}
		}
	}
	none := leaseStatus(http.StatusNotFound, "NotFound")
	s.Inject(func(kubetest.Request) kubetest.Fault { return kubetest.Fault{Answer: &none} })
	if _, err := store.Replace(quick(), "k", version, text); !errors.Is(err, record.ErrConflict) {
		t.Errorf("Replace of a Lease that is not found: %v, expected a conflict", err)
	}
	s.Inject(nil)
	_, now, err := store.Get(t.Context(), "k")
	if err != nil || now != version {
		t.Errorf("the version is %q, %v, expected %q", now, err, version)
	}
	for _, wrong := range []string{"", "1", "/1/0", "u//0", "u/1/", "u/1/x"} {
		if _, err := store.Replace(t.Context(), "k", wrong, text); err == nil || errors.Is(err, record.ErrConflict) {
			t.Errorf("Replace of version %q: %v", wrong, err)
		}
	}
}

// client-go repeats a request that was answered with Retry-After, although it may have been executed. The success of
// the first one is then reported as a conflict.
func TestWritesThatAreRepeated(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	l, other := client(t, s), client(t, s)
	once := func(method string) {
		done := false
		s.Inject(func(r kubetest.Request) kubetest.Fault {
			if done || r.Method != method {
				return kubetest.Fault{}
			}
			done = true
			status := leaseStatus(http.StatusInternalServerError, "ServerTimeout")
			status.RetryAfter = time.Second
			return kubetest.Fault{Answer: &status, Executed: true}
		})
	}
	token := uint64(0)
	for _, method := range []string{http.MethodPost, http.MethodPut} {
		once(method)
		held, err := l.TryLock(t.Context(), "k", locker.TTL(time.Minute))
		if err != nil {
			t.Fatalf("a %s that is repeated: %v", method, err)
		}
		if held.Fence() <= token {
			t.Errorf("the token is %d after %d", held.Fence(), token)
		}
		token = held.Fence()
		once(http.MethodPut)
		err = held.Unlock(t.Context()) // waits for a second at most, and the rest happens in the background
		if err != nil && !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("a release that is repeated: %v", err)
		}
	}
	s.Inject(nil)
	held, err := other.TryLock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	_ = held.Unlock(t.Context())
}

// prompt checks that call returns soon after the end of its context: the best of several tries counts.
func prompt(t *testing.T, what string, call func(ctx context.Context) error) {
	t.Helper()
	const wait = 50 * time.Millisecond
	best := time.Hour
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		began := time.Now()
		done := make(chan error, 1)
		go func() { done <- call(ctx) }()
		var err error
		select {
		case err = <-done:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s is under way 30 s after the end of the context", what)
		}
		best = min(best, time.Since(began)-wait)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, record.ErrConflict) {
			t.Errorf("%s: %v, expected the end of the context", what, err)
		}
	}
	if best > 100*time.Millisecond {
		t.Errorf("%s returns %v after the end of the context", what, best)
	}
}

func promptly(t *testing.T, when string, store record.Store) {
	t.Helper()
	prompt(t, when+": Get", func(ctx context.Context) error { _, _, err := store.Get(ctx, "k"); return err })
	prompt(t, when+": Create", func(ctx context.Context) error {
		_, err := store.Create(ctx, "k", []byte("t"))
		return err
	})
	prompt(t, when+": Replace", func(ctx context.Context) error {
		_, err := store.Replace(ctx, "k", "uid/1/0", []byte("t"))
		return err
	})
}

func TestContextsEndCalls(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	store := open(t, s)
	defer store.Close()
	resume := s.Hang()
	promptly(t, "a server that hangs", store)
	resume()
	status := leaseStatus(http.StatusTooManyRequests, "TooManyRequests")
	status.RetryAfter = time.Hour
	s.Inject(func(kubetest.Request) kubetest.Fault { return kubetest.Fault{Answer: &status} })
	promptly(t, "a server that has too many requests", store)
}

// client-go runs credential plugins without a context.
func TestContextsEndCallsBehindAPlugin(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	dir := t.TempDir()
	plugin, done, kubeconfig := filepath.Join(dir, "plugin"), filepath.Join(dir, "done"), filepath.Join(dir, "kubeconfig")
	for path, text := range map[string]string{
		plugin: "#!/bin/sh\nwhile [ ! -e " + done + " ]; do sleep 0.02; done\n",
		kubeconfig: fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
			"clusters":[{"name":"c","cluster":{"server":"https://%s","insecure-skip-tls-verify":true}}],
			"users":[{"name":"c","user":{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":%q,
				"interactiveMode":"Never"}}}],
			"contexts":[{"name":"c","context":{"cluster":"c","user":"c","namespace":"locks"}}]}`, s.Addr(), plugin),
	} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	store, err := kuberneteslock.Open(&kuberneteslock.Config{Kubeconfig: kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	end := func() {
		if err := os.WriteFile(done, nil, 0o600); err != nil {
			t.Error(err)
		}
	}
	defer end()
	promptly(t, "a plugin that hangs", store)
	end()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, _, err := store.Get(ctx, "k"); err == nil || !strings.Contains(err.Error(), "ExecCredential") &&
		!strings.Contains(err.Error(), "plugin") && !strings.Contains(err.Error(), "decoding stdout") {
		t.Errorf("a plugin that prints nothing: %v", err)
	}
}

// stuck is a client whose calls ignore their contexts, as a plugin does, until goOn is closed.
type stuck struct {
	kuberneteslock.Leases
	inProgress atomic.Int32
	goOn       chan struct{}
}

func (s *stuck) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	s.inProgress.Add(1)
	<-s.goOn
	s.inProgress.Add(-1)
	return nil, errors.New("gone on")
}

// However often callers try while calls hang, there are not more goroutines than that.
func TestCallsThatHangAreBounded(t *testing.T) {
	t.Parallel()
	leases := &stuck{goOn: make(chan struct{})}
	store := kuberneteslock.NewStore(leases)
	var all sync.WaitGroup
	for range kuberneteslock.MaxCalls + 50 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, _, err := store.Get(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, _, err := store.Get(ctx, "k"); err == nil || !strings.Contains(err.Error(), "plugin") {
		t.Errorf("one call more: %v", err)
	}
	if n := leases.inProgress.Load(); n > kuberneteslock.MaxCalls {
		t.Errorf("%d calls are in progress", n)
	}
	close(leases.goOn)
	if _, _, err := store.Get(t.Context(), "k"); err == nil || !strings.Contains(err.Error(), "gone on") {
		t.Errorf("when the calls go on: %v", err)
	}
}

// If the network has forgotten the connections, that costs one request, and not one for each connection. Other tests do
// not run at the same time: client-go shares a pool of connections between stores with the same certificates, and
// whoever closes a store closes those that are idle.
func TestForgottenConnectionsCostOneRequest(t *testing.T) {
	s := kubetest.StartTLS(t)
	store := open(t, s)
	defer store.Close()
	get := func(wait time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		_, _, err := store.Get(ctx, "k")
		return err
	}
	resume := s.Hang()
	const many = 8
	done := make(chan error, many)
	for range many {
		go func() { done <- get(time.Minute) }()
	}
	for s.Waiting() < many { // each has a connection
		<-time.After(time.Millisecond)
	}
	resume()
	for range many {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	s.Strand()
	if err := get(100 * time.Millisecond); err == nil {
		t.Fatal("a request on a connection that is lost was answered")
	}
	if err := get(30 * time.Second); err != nil {
		t.Errorf("the next request: %v", err)
	}
}

// client-go would let ten requests through, and then five a second.
func TestRequestsDoNotWaitInTheClient(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	store := open(t, s)
	defer store.Close()
	began := time.Now()
	for range 110 {
		if _, _, err := store.Get(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("110 requests took %v", took)
	}
}

// docs/backends/kubernetes.md says what locks cost.
func TestRequestsOfALock(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	l, other := client(t, s), client(t, s)
	last := map[string]int{}
	cost := func(what string, gets, posts, puts int) {
		t.Helper()
		now := s.Requests()
		for method, want := range map[string]int{http.MethodGet: gets, http.MethodPost: posts, http.MethodPut: puts} {
			if n := now[method] - last[method]; n != want {
				t.Errorf("%s: %d requests %s, expected %d", what, n, method, want)
			}
		}
		last = now
	}
	cycle := func(c *locker.Client, what string, gets, posts int) {
		t.Helper()
		held, err := c.TryLock(t.Context(), "k", locker.TTL(time.Minute), locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		cost(what, gets, posts, 1-posts)
		if err := held.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
		cost("a renewal", 0, 0, 1)
		if err := held.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		cost("a release", 0, 0, 1)
	}
	cycle(l, "the first acquisition", 1, 1)
	cycle(l, "another one of the same process", 0, 0)
	cycle(other, "one of another process", 1, 0)
}

func TestNamesOfObjects(t *testing.T) {
	for record, want := range map[string]string{
		"lock=3aorders":         "lock.3aorders",
		"lock=3amy-operator":    "lock.3amy-operator",
		"jobs=2fnightly_report": "jobs.2fnightly.ureport",
		"=2e":                   "x.2e",
		"x=2e":                  "xx.2e",
		"-a--b-":                "x.ma.m.mb.m",
		"==":                    "x.q.q",
		"=s0":                   "x.qs0",
	} {
		if got := kuberneteslock.ObjectName(record); got != want {
			t.Errorf("%s is %s, expected %s", record, got, want)
		}
	}
	const characters = "a0fxmuqs-_="
	rng := rand.New(rand.NewPCG(1, 2))
	seen := make(map[string]string)
	check := func(record string) {
		t.Helper()
		object := kuberneteslock.ObjectName(record)
		if wrong := validation.IsDNS1123Subdomain(object); wrong != nil {
			t.Fatalf("%q is %q: %v", record, object, wrong)
		}
		if before, ok := seen[object]; ok && before != record {
			t.Fatalf("%q and %q are both %q", record, before, object)
		}
		seen[object] = record
	}
	var all func(name string)
	all = func(name string) { // all names of up to four characters
		if name != "" {
			check(name)
		}
		if len(name) == 4 {
			return
		}
		for i := range len(characters) {
			all(name + characters[i:i+1])
		}
	}
	all("")
	for i := range len(characters) {
		check(strings.Repeat(characters[i:i+1], 200))
	}
	for range 20_000 {
		name := make([]byte, 1+rng.IntN(200))
		few := 1 + rng.IntN(len(characters)) // long names are not all hashes
		for i := range name {
			name[i] = characters[rng.IntN(few)]
		}
		check(string(name))
	}
}
