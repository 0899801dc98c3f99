package kuberneteslock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/record"
)

// lister is what a client for Leases may also be. client-go's LeaseInterface is one.
type lister interface {
	List(ctx context.Context, opts metav1.ListOptions) (*coordinationv1.LeaseList, error)
}

// page is how many Leases a request of List asks for.
const page = 100

// List implements [record.Lister]. It reads all Leases of the namespace, because those of older versions of this
// library have no label. The API server continues a list with what was true at its beginning, so pages that continue
// have no texts of locks that are taken.
func (s *Store) List(ctx context.Context, prefix, from string) (all []record.Listed, next string, err error) {
	l, ok := s.leases.(lister)
	if !ok {
		return nil, "", fmt.Errorf("%w: the client for Leases has no method List", errors.ErrUnsupported)
	}
	list := func() (*coordinationv1.LeaseList, error) {
		return within(ctx, s, func() (*coordinationv1.LeaseList, error) {
			return l.List(ctx, metav1.ListOptions{Limit: page, Continue: from})
		})
	}
	found, err := list()
	var gone apierrors.APIStatus
	if from != "" && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)) && errors.As(err, &gone) {
		// The API server has forgotten what was true at the beginning. It tells how to go on with what is true now. If
		// not, the list begins anew.
		from = gone.Status().Continue
		found, err = list()
	}
	if apierrors.IsForbidden(err) {
		err = fmt.Errorf("%w: the user needs the right to list leases of coordination.k8s.io in this namespace", err)
	}
	if err != nil {
		return nil, "", err
	}
	for i := range found.Items {
		lease := &found.Items[i]
		name, ok := recordName(lease.Name)
		if !ok || !strings.HasPrefix(name, prefix) || lease.Annotations[annotation] == "" {
			continue
		}
		r := record.Listed{Name: name, Text: textOf(lease)}
		d, err := record.Describe(r.Text)
		if err == nil && d.State != inspect.Free && from != "" && !strings.HasPrefix(lease.Name, hashedName) {
			r.Text = nil
		}
		all = append(all, r)
	}
	return all, found.Continue, nil
}

// recordName is the reverse of objectName. Of a name that is a hash, it makes one of a record that is a hash, too.
func recordName(object string) (name string, ok bool) {
	if hash, found := strings.CutPrefix(object, hashedName); found {
		return "=s" + hash, true
	}
	rest := object
	if strings.HasPrefix(object, "x") && strings.HasPrefix(strings.TrimLeft(object, "x"), ".") {
		rest = object[1:]
	}
	name = decoded.Replace(rest)
	return name, objectName(name) == object
}

var decoded = strings.NewReplacer(".m", "-", ".u", "_", ".q", "=", ".", "=")
