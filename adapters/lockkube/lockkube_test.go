package lockkube_test

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockkube"
	"github.com/golocker/locker/memory"
)

// The tests with electors, managers and stores are in internal/testing/adapters/lockkube, because they need modules
// that the adapter does not.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestIdentities(t *testing.T) {
	l := memory.New()
	defer l.Close()
	long := strings.Repeat("x", 65)
	record := resourcelock.LeaderElectionRecord{HolderIdentity: long, LeaseDurationSeconds: 15}
	if err := lockkube.New(l, "my-operator", long).Create(t.Context(), record); !errors.Is(err, locker.ErrInvalid) {
		t.Errorf("an identity that is too long: %v", err)
	}
	var a resourcelock.Interface = lockkube.New(l, "my-operator", "a")
	if a.Identity() != "a" {
		t.Fatalf("the identity is %q", a.Identity())
	}
	if record, _, err := a.Get(t.Context()); err != nil || record.HolderIdentity != "" {
		t.Errorf("nobody has the lock: %+v, %v", record, err)
	}
}

// A leader whose program drains is told, so that its manager stops and releases the lock.
func TestAwaitLossReturnsWhenTheClientDrains(t *testing.T) {
	l := memory.New()
	defer l.Close()
	lock := lockkube.New(l, "my-operator", "a")
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}
	if err := lock.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 1)
	go func() { told <- lock.AwaitLoss(t.Context()) }()
	drained := make(chan int, 1)
	go func() { drained <- len(l.Drain(t.Context())) }()
	if err := <-told; !errors.Is(err, locker.ErrDraining) || errors.Is(err, locker.ErrLost) {
		t.Errorf("AwaitLoss: %v", err)
	}
	if err := lock.Update(t.Context(), record); err != nil {
		t.Errorf("a renewal while the Client drains: %v", err)
	}
	if err := lock.Update(t.Context(), resourcelock.LeaderElectionRecord{}); err != nil {
		t.Errorf("the release: %v", err)
	}
	if n := <-drained; n > 0 {
		t.Errorf("%d locks are held", n)
	}
}
