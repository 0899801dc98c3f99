package kuberneteslock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/httpdate"
	"github.com/golocker/locker/record"
)

// Config is the section kubernetes, of URLs such as kubernetes://namespace?kubeconfig=/path&context=name, and of
// LOCKER_KUBERNETES_NAMESPACE and so on.
type Config struct {
	// Namespace has the Leases. Empty: that of the pod's service account, or of the context of the kubeconfig.
	Namespace string `yaml:"namespace,omitempty" json:"namespace,omitempty" url:"-"`
	// Kubeconfig is the path of a file such as kubectl reads. Empty: the program runs in a pod, and uses its service
	// account.
	Kubeconfig string `yaml:"kubeconfig,omitempty" json:"kubeconfig,omitempty"`
	// Context is the one of the kubeconfig to use. Empty: its current context.
	Context string `yaml:"context,omitempty" json:"context,omitempty"`
	// Poll is the longest pause between two looks of a waiter; see [record.Poll]. Zero: [record.DefaultPoll].
	Poll config.Duration `yaml:"poll,omitempty" json:"poll,omitempty"`
	// Timeout bounds a call, which makes one request or a few; see [record.Timeout]. Zero: [record.DefaultTimeout].
	Timeout config.Duration `yaml:"timeout,omitempty" json:"timeout,omitempty"`
	// ClockSkew is by how much the clocks of the API servers may differ; see [record.ClockSkew]. Zero: their times are not
	// used.
	ClockSkew config.Duration `yaml:"clock_skew,omitempty" json:"clock_skew,omitempty"`
}

func init() {
	config.Register("kubernetes", config.Kind[Config]{
		Parse: func(s *Config, at config.Location, report config.Report) {
			s.Namespace = at.Host
			if strings.Trim(at.Path, "/") != "" {
				report("kubeconfig", errors.New("a URL has no path: give the file as in "+
					"kubernetes://namespace?kubeconfig=/path"))
			}
		},
		Format: func(s *Config) config.Location { return config.Location{Host: s.Namespace} },
		Check:  (*Config).check,
		Open: func(_ context.Context, s *Config, prefix string) (*locker.Client, error) {
			return s.open(prefix)
		},
	})
}

var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (s *Config) check(report config.Report) {
	if s.Namespace != "" && !label.MatchString(s.Namespace) {
		report("namespace", errors.New("lower-case letters, digits and - are expected"))
	}
	if s.Context != "" && s.Kubeconfig == "" {
		report("kubeconfig", errors.New("missing, although there is a context"))
	}
}

// serviceAccount is the directory in which a pod finds its service account.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

func (s *Config) open(prefix string) (*locker.Client, error) {
	own, err := s.store()
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	return record.New(own, record.Prefix(prefix), record.Poll(time.Duration(s.Poll)),
		record.Timeout(time.Duration(s.Timeout)), record.ClockSkew(time.Duration(s.ClockSkew))), nil
}

// store makes a client and a Store that owns it. It sends nothing.
func (s *Config) store() (*Store, error) {
	cluster, namespace, err := s.cluster()
	if err != nil {
		return nil, err
	}
	if s.Namespace != "" {
		namespace = s.Namespace
	}
	return newStore(cluster, namespace)
}

// cluster returns how to reach the API server, and the namespace that is used by default.
func (s *Config) cluster() (*rest.Config, string, error) {
	if s.Kubeconfig == "" {
		return inCluster(serviceAccount, s.Namespace)
	}
	// The deferred loading of clientcmd would take the service account instead of a file that is empty.
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: s.Kubeconfig}
	loaded, err := rules.Load()
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: %w", err)
	}
	file := clientcmd.NewNonInteractiveClientConfig(*loaded, s.Context, &clientcmd.ConfigOverrides{}, rules)
	cluster, err := file.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig %s: %w", s.Kubeconfig, err)
	}
	namespace, _, err := file.Namespace()
	return cluster, namespace, err
}

// inCluster is rest.InClusterConfig, which has a fixed directory, and the namespace of the pod. The file of that is not
// read if a namespace is given.
func inCluster(dir, namespace string) (*rest.Config, string, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, "", errors.New("this is not a pod (KUBERNETES_SERVICE_HOST is not set): give a kubeconfig")
	}
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	var err error
	if namespace == "" {
		var text []byte
		text, err = os.ReadFile(filepath.Join(dir, "namespace"))
		namespace = strings.TrimSpace(string(text))
	}
	if err == nil {
		_, err = os.Stat(token)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%w: mount the token of the service account into the pod, or give a kubeconfig", err)
	}
	return &rest.Config{
		Host: "https://" + net.JoinHostPort(host, port), BearerTokenFile: token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: ca},
	}, namespace, nil
}

// newStore makes a client of the Leases of a namespace, and a Store that owns it.
//
// The client has no limit of its own for requests, because a renewal must not wait for others of this process. The API
// server protects itself by priority and fairness.
//
// It speaks HTTP/1.1. All requests of HTTP/2 would share one connection. If the network forgets that, client-go needs
// 45 seconds to notice, which is longer than the default TTL. Here, a request that is not answered ends its connection.
func newStore(cluster *rest.Config, namespace string) (*Store, error) {
	known := runtime.NewScheme()
	if err := coordinationv1.AddToScheme(known); err != nil {
		return nil, err
	}
	c := rest.CopyConfig(cluster)
	c.APIPath, c.GroupVersion = "/apis", &coordinationv1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(known).WithoutConversion()
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c.UserAgent = rest.DefaultKubernetesUserAgent()
	c.QPS, c.Timeout, c.NextProtos = -1, 0, []string{"http/1.1"}
	c.Wrap(func(t http.RoundTripper) http.RoundTripper { return dated{t} })
	connections, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, err
	}
	requests, err := rest.RESTClientForConfigAndClient(c, connections)
	if err != nil {
		return nil, err
	}
	s := NewStore(client{requests, namespace})
	s.closeIdle = func() { utilnet.CloseIdleConnectionsFor(connections.Transport) }
	s.dated = true
	return s, nil
}

// dated is a transport whose answers tell the time.
type dated struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (d dated) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := d.RoundTripper.RoundTrip(r)
	if err == nil {
		httpdate.Tell(r, answer)
	}
	return answer, err
}

// WrappedRoundTripper returns the transport within, for those who close its idle connections.
func (d dated) WrappedRoundTripper() http.RoundTripper { return d.RoundTripper }

// client implements Leases. That of client-go's package typed/coordination/v1 knows the types of all API groups, and
// more than doubles the packages that a program has to compile.
type client struct {
	rest      rest.Interface
	namespace string
}

// Get implements Leases.
func (c client) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	return c.send(ctx, c.rest.Get().Name(name), nil)
}

// Create implements Leases.
func (c client) Create(
	ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	return c.send(ctx, c.rest.Post(), lease)
}

// Update implements Leases.
func (c client) Update(
	ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	return c.send(ctx, c.rest.Put().Name(lease.Name), lease)
}

// Watch watches Leases. The answer ends with ctx.
func (c client) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return c.rest.Get().Namespace(c.namespace).Resource("leases").Param("watch", "true").
		Param("fieldSelector", opts.FieldSelector).Param("timeoutSeconds", strconv.FormatInt(*opts.TimeoutSeconds, 10)).
		Watch(klog.NewContext(ctx, logr.Discard()))
}

// List lists a page of Leases.
func (c client) List(ctx context.Context, opts metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	answer := new(coordinationv1.LeaseList)
	return answer, c.rest.Get().Namespace(c.namespace).Resource("leases").
		Param("limit", strconv.FormatInt(opts.Limit, 10)).Param("continue", opts.Continue).
		Do(klog.NewContext(ctx, logr.Discard())).Into(answer)
}

// send sends a request. body is nil if it has none. client-go prints errors that it returns, too, unless the context
// has another logger.
func (c client) send(
	ctx context.Context, r *rest.Request, body *coordinationv1.Lease,
) (*coordinationv1.Lease, error) {
	ctx = klog.NewContext(ctx, logr.Discard())
	answer := new(coordinationv1.Lease)
	return answer, r.Namespace(c.namespace).Resource("leases").Body(body).Do(ctx).Into(answer)
}
