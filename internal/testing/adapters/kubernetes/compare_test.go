// Package kubernetes_test compares the API server of internal/testing/kubetest, on which backends/kuberneteslock is
// tested, with the fake client of controller-runtime, whose conflicts are modelled on the real one by other people. It
// is here because that client brings much that the backend does not need.
package kubernetes_test

import (
	"context"
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/kuberneteslock"
	"github.com/golocker/locker/internal/testing/kubetest"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/record/recordtest"
)

// fakes are Leases in the fake client of controller-runtime, which gives objects no uid.
type fakes struct{ client.Client }

func newFakes() fakes {
	return fakes{fake.NewClientBuilder().WithGlobalResourceVersionCounter().Build()}
}

func (f fakes) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease := new(coordinationv1.Lease)
	return lease, f.Client.Get(ctx, client.ObjectKey{Namespace: kubetest.Namespace, Name: name}, lease)
}

func (f fakes) Create(
	ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()
	lease.Namespace, lease.UID = kubetest.Namespace, uuid.NewUUID()
	return lease, f.Client.Create(ctx, lease)
}

func (f fakes) Update(
	ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()
	lease.Namespace = kubetest.Namespace
	return lease, f.Client.Update(ctx, lease)
}

func (f fakes) remove(t *testing.T, name string) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: kubetest.Namespace, Name: name}}
	if err := client.IgnoreNotFound(f.Client.Delete(t.Context(), lease)); err != nil {
		t.Fatal(err)
	}
}

// typed returns a client of client-go for the server, which is a client of the program's own for
// kuberneteslock.NewStore.
func typed(t testing.TB, s *kubetest.Server) coordinationclient.CoordinationV1Interface {
	t.Helper()
	c, err := coordinationclient.NewForConfig(&rest.Config{
		Host: "http://" + s.Addr(), QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRulesOfStoresOnTheFakeClient(t *testing.T) {
	recordtest.Run(t, func(testing.TB, string) (record.Store, string) { return kuberneteslock.NewStore(newFakes()), "" })
}

func TestTheServerDoesWhatTheFakeClientDoes(t *testing.T) {
	s, f := kubetest.Start(t), newFakes()
	leases := typed(t, s).Leases(kubetest.Namespace)
	stores := [2]record.Store{kuberneteslock.NewStore(leases), kuberneteslock.NewStore(f)}
	kubetest.Compare(t, stores, func(name string) {
		s.Delete(name)
		f.remove(t, name)
	})
}

// The resource lock of client-go's electors takes a Lease whose lock is free, and is not disturbed after that. As long
// as the lock is held, an elector sees who has it, and for how long.
func TestElectorsOfClientGo(t *testing.T) {
	s := kubetest.Start(t)
	leases := typed(t, s)
	l := record.New(kuberneteslock.NewStore(leases.Leases(kubetest.Namespace)), record.Prefix("lock:"))
	defer l.Close()
	held, err := l.TryLock(t.Context(), "k", locker.TTL(30*time.Second), locker.Label("web-7"))
	if err != nil {
		t.Fatal(err)
	}
	elector := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: kubetest.Namespace, Name: "lock.3ak"}, Client: leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: "operator-1"},
	}
	seen, _, err := elector.Get(t.Context())
	if err != nil || seen.HolderIdentity != "web-7" || seen.LeaseDurationSeconds != 30 || seen.LeaderTransitions != 1 {
		t.Errorf("the elector sees %+v, %v", seen, err)
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if seen, _, err = elector.Get(t.Context()); err != nil || seen.HolderIdentity != "" {
		t.Fatalf("the elector sees %+v, %v", seen, err)
	}
	seen.HolderIdentity = "operator-1"
	if err := elector.Update(t.Context(), *seen); err != nil {
		t.Fatal(err)
	}
	other := record.New(kuberneteslock.NewStore(leases.Leases(kubetest.Namespace)), record.Prefix("lock:"))
	defer other.Close()
	for _, c := range []locker.Locker{l, other} {
		if _, err := c.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrForeignKey) {
			t.Errorf("TryLock of a Lease that an elector has taken: %v", err)
		}
	}
	if err := elector.Update(t.Context(), *seen); err != nil {
		t.Errorf("the elector was disturbed: %v", err)
	}
}
