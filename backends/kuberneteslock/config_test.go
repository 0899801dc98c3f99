package kuberneteslock_test

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/kuberneteslock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/configtest"
	"github.com/golocker/locker/internal/testing/kubetest"
	"github.com/golocker/locker/record"
)

// The same locks by a URL, in a file, in the environment, and by a Store of the program's own. A lock of one is held
// for the others.
func TestFourWays(t *testing.T) {
	t.Parallel()
	s := kubetest.StartTLS(t) // clientcmd sends no token without TLS
	s.Require("hunter2")
	kubeconfig := s.Kubeconfig("hunter2")
	byDefault, err := config.Open(t.Context(), "kubernetes://?kubeconfig="+kubeconfig) // the namespace of the context
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = byDefault.Close() })
	store, err := kuberneteslock.Open(&kuberneteslock.Config{Kubeconfig: kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	own := record.New(store, record.Prefix(prefix))
	t.Cleanup(func() { _ = own.Close() })
	ways := configtest.Ways{
		URL: "kubernetes://locks?kubeconfig=" + kubeconfig + "&context=test&poll=50ms&timeout=10s&clock_skew=5s",
		YAML: "backend: kubernetes\nttl: 5s\nkubernetes:\n  namespace: locks\n  kubeconfig: " + kubeconfig +
			"\n  context: test\n  poll: 50ms\n  timeout: 10s\n  clock_skew: 5s\n",
		Env: []string{
			"LOCKER_BACKEND=kubernetes", "LOCKER_KUBERNETES_KUBECONFIG=" + kubeconfig, "LOCKER_KUBERNETES_POLL=50ms",
			"LOCKER_KUBERNETES_CONTEXT=test", "LOCKER_KUBERNETES_NAMESPACE=locks", "LOCKER_KUBERNETES_TIMEOUT=10s",
			"LOCKER_KUBERNETES_CLOCK_SKEW=5s",
		},
	}.SameLocks(t, byDefault, own)
	if _, err := ways["file"].TryLock(t.Context(), "k", locker.TTL(time.Minute)); err != nil {
		t.Error(err)
	}
	if s.Lease(objectOf("k")) == "" {
		t.Error("the Lease has another name, or is in another namespace")
	}
}

func TestTexts(t *testing.T) {
	configtest.Texts(t, map[string]string{
		"kubernetes://": "", "kubernetes://locks?clock_skew=5s&context=test&kubeconfig=%2Fpath&poll=50ms&timeout=10s": "",
	})
}

func TestMistakes(t *testing.T) {
	configtest.Mistakes(t, map[string]string{
		"kubernetes://Locks":                  "namespace: lower-case letters, digits and -",
		"kubernetes://a.b":                    "namespace: lower-case letters, digits and -",
		"kubernetes://" + longName:            "namespace: lower-case letters, digits and -",
		"kubernetes://locks?context=a":        "kubeconfig: missing, although there is a context",
		"kubernetes://locks/etc/kubeconfig":   "kubernetes://namespace?kubeconfig=/path",
		"kubernetes://locks?kubconfig=/path":  "did you mean kubeconfig?",
		"kubernetes://locks?timeout=-1s":      "timeout: ",
		"kubernetes://user:password@locks":    "",
		"kubernetes+client://locks":           "",
		"kubernetes://locks?poll=fortnightly": "poll: ",
	})
}

var longName = strings.Repeat("n", 64)

// What keeps a configuration from being opened, and what to do.
func TestErrorsOfOpen(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	kubeconfig := kubetest.Start(t).Kubeconfig("")
	for url, want := range map[string]string{
		"kubernetes://": "this is not a pod (KUBERNETES_SERVICE_HOST is not set): give a kubeconfig",
		"kubernetes://?kubeconfig=" + dir + "/none":                dir + "/none",
		"kubernetes://?kubeconfig=" + empty:                        empty,
		"kubernetes://?context=other&kubeconfig=" + kubeconfig:     "context was not found for specified context: other",
		"kubernetes://locks?context=Test&kubeconfig=" + kubeconfig: "context was not found for specified context: Test",
	} {
		l, err := config.Open(t.Context(), url)
		if err == nil {
			_ = l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", url, err, want)
		}
	}
}

// Errors that last until somebody does something say what to do.
func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	s := kubetest.StartTLS(t) // clientcmd sends no token without TLS
	s.Require("hunter2")
	for what, tt := range map[string]struct {
		url    string
		answer *kubetest.Status
		want   []string
	}{
		"a wrong token": {"kubernetes://?kubeconfig=" + s.Kubeconfig("wrong"), nil, []string{"renew the credentials"}},
		"no namespace": {"kubernetes://missing?kubeconfig=" + s.Kubeconfig("hunter2"), nil,
			[]string{`namespaces "missing" not found`, "create the namespace"}},
		"no right": {"kubernetes://?kubeconfig=" + s.Kubeconfig("hunter2"), &kubetest.Status{
			Code: http.StatusForbidden, Reason: "Forbidden", Kind: "leases",
			Message: `leases.coordination.k8s.io is forbidden: User "system:serviceaccount:locks:default" cannot get`,
		}, []string{"system:serviceaccount:locks:default", "rights to get, create and update leases"}},
		"another server": {"kubernetes://?kubeconfig=" + s.Kubeconfig("hunter2"), &kubetest.Status{
			Code: http.StatusNotFound, Message: "404 page not found", Page: true,
		}, []string{"is this the address of an API server?"}},
	} {
		s.Inject(func(kubetest.Request) kubetest.Fault { return kubetest.Fault{Answer: tt.answer} })
		l, err := config.Open(t.Context(), tt.url)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		_, err = l.TryLock(t.Context(), "k")
		for _, text := range tt.want {
			if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v, expected %q", what, err, text)
			}
		}
		_ = l.Close()
	}
	s.Inject(nil)
	open := func(timeout string) *config.Opened {
		t.Helper()
		l, err := config.Open(t.Context(), "kubernetes://?timeout="+timeout+"&kubeconfig="+s.Kubeconfig("hunter2"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	l := open("300ms")
	resume := s.Hang()
	if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrUnavailable) ||
		!strings.Contains(err.Error(), "no answer from the API server") {
		t.Errorf("a server that hangs: %v", err)
	}
	resume()
	l = open("10s")
	up := s.Down()
	if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrUnavailable) ||
		!strings.Contains(err.Error(), s.Addr()) {
		t.Errorf("without a server: %v", err)
	}
	up()
	held, err := l.TryLock(t.Context(), "k")
	if err != nil {
		t.Fatalf("when the server is back: %v", err)
	}
	_ = held.Unlock(t.Context())
}

// In a pod, the namespace, the token and the certificate are in files.
func TestInAPod(t *testing.T) {
	s := kubetest.StartTLS(t)
	s.Require("hunter2")
	host, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wrong := func(want string) {
		t.Helper()
		if _, err := kuberneteslock.OpenInPod(dir, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
	wrong("mount the token of the service account into the pod")
	write("namespace", kubetest.Namespace+"\n")
	wrong("mount the token of the service account into the pod")
	write("token", "hunter2")
	wrong("ca.crt")
	write("ca.crt", string(s.CA()))
	for _, namespace := range []string{"", kubetest.Namespace} {
		store, err := kuberneteslock.OpenInPod(dir, namespace)
		if err != nil {
			t.Fatal(err)
		}
		l := record.New(store, record.Prefix(prefix))
		held, err := l.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if s.Lease(objectOf("k")) == "" {
			t.Error("the Lease is in another namespace")
		}
		if err := held.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		_ = l.Close()
	}
}
