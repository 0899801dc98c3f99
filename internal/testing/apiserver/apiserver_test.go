// Package apiserver_test runs the store of backends/kuberneteslock on what the API server of Kubernetes keeps its
// objects with: the registry of k8s.io/apiserver, over an etcd in the process. A test compares it with the server of
// internal/testing/kubetest, on which all other tests of the store run. This is a module of its own, because it brings
// a thousand packages. What the API server does before that is not in it: HTTP, authorization and admission.
package apiserver_test

import (
	"context"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clientrest "k8s.io/client-go/rest"

	"github.com/golocker/locker/backends/kuberneteslock"
	"github.com/golocker/locker/internal/testing/kubetest"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/record/recordtest"
)

// strategy is that of Leases in the API server, without the validation of their fields.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (strategy) NamespaceScoped() bool                                                 { return true }
func (strategy) PrepareForCreate(context.Context, runtime.Object)                      {}
func (strategy) PrepareForUpdate(_ context.Context, _, _ runtime.Object)               {}
func (strategy) Validate(context.Context, runtime.Object) field.ErrorList              { return nil }
func (strategy) ValidateUpdate(_ context.Context, _, _ runtime.Object) field.ErrorList { return nil }
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string             { return nil }
func (strategy) WarningsOnUpdate(_ context.Context, _, _ runtime.Object) []string      { return nil }
func (strategy) Canonicalize(runtime.Object)                                           {}
func (strategy) AllowCreateOnUpdate(context.Context) bool                              { return true }
func (strategy) AllowUnconditionalUpdate(context.Context) bool                         { return false }

// leases implements kubernetes.Leases.
type leases struct{ registry *registry.Store }

// start starts an etcd, and returns the registry of its Leases.
func start(t testing.TB) leases {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := coordinationv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	internal := schema.GroupVersion{Group: coordinationv1.GroupName, Version: runtime.APIVersionInternal}
	scheme.AddKnownTypes(internal, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	etcd := testserver.RunEtcd(t, nil)
	resource := coordinationv1.Resource("leases")
	storage := storagebackend.NewDefaultConfig("/registry",
		serializer.NewCodecFactory(scheme).LegacyCodec(coordinationv1.SchemeGroupVersion))
	storage.Transport.ServerList = etcd.Endpoints()
	s := strategy{scheme, names.SimpleNameGenerator}
	r := &registry.Store{
		NewFunc:                  func() runtime.Object { return &coordinationv1.Lease{} },
		NewListFunc:              func() runtime.Object { return &coordinationv1.LeaseList{} },
		DefaultQualifiedResource: resource, SingularQualifiedResource: coordinationv1.Resource("lease"),
		CreateStrategy: s, UpdateStrategy: s, DeleteStrategy: s, TableConvertor: rest.NewDefaultTableConvertor(resource),
	}
	err := r.CompleteWithOptions(&generic.StoreOptions{RESTOptions: generic.RESTOptions{
		StorageConfig: storage.ForResource(resource), Decorator: generic.UndecoratedStorage, ResourcePrefix: "leases",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Destroy)
	return leases{r}
}

// in returns the context of a request for Leases of a namespace.
func in(ctx context.Context) context.Context {
	return request.WithRequestInfo(request.WithNamespace(ctx, kubetest.Namespace), &request.RequestInfo{
		APIGroup: coordinationv1.GroupName, APIVersion: "v1", Resource: "leases",
	})
}

func lease(o runtime.Object, err error) (*coordinationv1.Lease, error) {
	if err != nil {
		return nil, err
	}
	return o.(*coordinationv1.Lease), nil
}

func (l leases) Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error) {
	return lease(l.registry.Get(in(ctx), name, &opts))
}

func (l leases) Create(
	ctx context.Context, o *coordinationv1.Lease, opts metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	o = o.DeepCopy()
	o.Namespace = kubetest.Namespace
	return lease(l.registry.Create(in(ctx), o, rest.ValidateAllObjectFunc, &opts))
}

func (l leases) Update(
	ctx context.Context, o *coordinationv1.Lease, opts metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	o = o.DeepCopy()
	o.Namespace = kubetest.Namespace
	stored, _, err := l.registry.Update(in(ctx), o.Name, rest.DefaultUpdatedObjectInfo(o), rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc, false, &opts)
	return lease(stored, err)
}

// Watch does what the handler of a watch does: it asks for the most recent state, because no version is given.
func (l leases) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	selector, err := fields.ParseSelector(opts.FieldSelector)
	if err != nil {
		return nil, err
	}
	return l.registry.Watch(in(ctx), &metainternalversion.ListOptions{
		FieldSelector: selector, TimeoutSeconds: opts.TimeoutSeconds, ResourceVersion: opts.ResourceVersion,
	})
}

// List does what the handler of a list does.
func (l leases) List(ctx context.Context, opts metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	found, err := l.registry.List(in(ctx), &metainternalversion.ListOptions{Limit: opts.Limit, Continue: opts.Continue})
	list, _ := found.(*coordinationv1.LeaseList)
	return list, err
}

func (l leases) remove(t *testing.T, name string) {
	t.Helper()
	_, _, err := l.registry.Delete(in(t.Context()), name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

func TestRulesOfStores(t *testing.T) {
	recordtest.Run(t, func(t testing.TB, _ string) (record.Store, string) { return kuberneteslock.NewStore(start(t)), "" })
}

func TestKubetestDoesWhatTheRegistryDoes(t *testing.T) {
	s, l := kubetest.Start(t), start(t)
	client, err := coordinationclient.NewForConfig(&clientrest.Config{
		Host: "http://" + s.Addr(), QPS: -1, ContentConfig: clientrest.ContentConfig{ContentType: "application/json"},
	})
	if err != nil {
		t.Fatal(err)
	}
	stores := [2]record.Store{
		kuberneteslock.NewStore(client.Leases(kubetest.Namespace)), kuberneteslock.NewStore(l),
	}
	kubetest.Compare(t, stores, func(name string) {
		s.Delete(name)
		l.remove(t, name)
	})
}

// What the store in Kubernetes depends on: with the uid of a Lease that was deleted, a write is refused. With the
// resourceVersion alone, it creates the Lease again.
func TestOnlyTheUIDKeepsADeletedLeaseFromComingBack(t *testing.T) {
	l := start(t)
	made, err := l.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "k"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.remove(t, "k")
	if _, err := l.Update(t.Context(), made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("with the uid: %v, expected a conflict", err)
	}
	made.UID = ""
	if _, err := l.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Errorf("without the uid: %v: the uid may not be needed any longer", err)
	}
}
