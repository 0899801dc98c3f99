package etcdlock_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/configtest"
	"github.com/golocker/locker/internal/testing/etcdtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// secured is an etcd that wants a certificate and a password of its clients.
type secured struct {
	t             *testing.T
	dir           string
	member        *etcdtest.Member
	root          *clientv3.Client
	ca, cert, key string // files
}

const password = configtest.Secret

func startSecured(t *testing.T) *secured {
	t.Helper()
	s := &secured{t: t, dir: t.TempDir()}
	a := redistest.NewAuthority(t)
	s.ca = s.file("ca.pem", string(a.PEM()))
	s.cert, s.key = s.issue(a, "")
	s.member = etcdtest.StartTLS(t, s.ca, s.cert, s.key, "--bcrypt-cost=4")
	root := clientv3.Config{Endpoints: []string{"https://" + s.member.Addr()}, TLS: a.TLS(t)}
	first := connect(t, root)
	do := func(_ any, err error) {
		t.Helper()
		s.must(err)
	}
	ctx := t.Context()
	do(first.UserAdd(ctx, "root", password))
	do(first.UserGrantRole(ctx, "root", "root"))
	do(first.RoleAdd(ctx, "locks"))
	const prefix = "app:"
	do(first.RoleGrantPermission(ctx, "locks", prefix, clientv3.GetPrefixRangeEnd(prefix),
		clientv3.PermissionType(clientv3.PermReadWrite)))
	do(first.UserAdd(ctx, "alice", password))
	do(first.UserGrantRole(ctx, "alice", "locks"))
	do(first.AuthEnable(ctx))
	root.Username, root.Password = "root", password
	s.root = connect(t, root)
	return s
}

func (s *secured) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *secured) file(name, text string) (path string) {
	s.t.Helper()
	path = filepath.Join(s.dir, name)
	s.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// issue writes a certificate to files.
func (s *secured) issue(a *redistest.Authority, name string) (cert, key string) {
	s.t.Helper()
	c, k := a.Issue(s.t, time.Hour)
	return s.file(name+"cert.pem", string(c)), s.file(name+"key.pem", string(k))
}

// url returns a URL with other settings than the right ones.
func (s *secured) url(user *url.Userinfo, other map[string]string) string {
	q := url.Values{
		"prefix": {"app:"}, "tls_ca_file": {s.ca}, "tls_cert_file": {s.cert}, "tls_key_file": {s.key}, "timeout": {"10s"},
	}
	for name, value := range other {
		if q.Set(name, value); value == "" {
			q.Del(name)
		}
	}
	u := url.URL{Scheme: "etcds", User: user, Host: s.member.Addr(), RawQuery: q.Encode()}
	return u.String()
}

// TestSecured has one etcd with TLS, certificates of clients, and a user.
func TestSecured(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	threeWays(t, s)
	groupsOfAUser(t, s)
	mistakesOfSecrets(t, s)
	refusedWatch(t, s)
	expiredToken(t, s)
	givenCredentials(t, s)
	expelledUser(t, s)
	replacedCertificates(t, s)
}

// The same store by a URL, in a file and in the environment. A lock of one is held for the others.
func threeWays(t *testing.T, s *secured) {
	configtest.Ways{
		URL: s.url(url.UserPassword("alice", password), nil),
		YAML: "backend: etcd\nprefix: 'app:'\netcd:\n  endpoints: [" + s.member.Addr() +
			"]\n  username: alice\n  password_file: " + s.file("password", password+"\n") +
			"\n  tls: {ca_file: " + s.ca + ", cert_file: " + s.cert + ", key_file: " + s.key + "}\n",
		Env: []string{
			"LOCKER_BACKEND=etcd", "LOCKER_PREFIX=app:", "LOCKER_ETCD_ENDPOINTS=" + s.member.Addr(),
			"LOCKER_ETCD_USERNAME=alice", "LOCKER_ETCD_PASSWORD=" + password, "LOCKER_ETCD_TLS_CA_FILE=" + s.ca,
			"LOCKER_ETCD_TLS_CERT_FILE=" + s.cert, "LOCKER_ETCD_TLS_KEY_FILE=" + s.key,
		},
	}.SameLocks(t)
}

// Groups need no permission but that of the prefix, whatever is done with them.
func groupsOfAUser(t *testing.T, s *secured) {
	l, err := config.Open(t.Context(), s.url(url.UserPassword("alice", password), nil))
	s.must(err)
	defer func() { s.must(l.Close()) }()
	examined, ok := locker.As[inspect.Inspector](l)
	if !ok {
		t.Fatal("the Locker shows nothing")
	}
	waits := func(n int) func() bool {
		return func() bool {
			i, err := examined.Inspect(t.Context(), "{config}#rw")
			s.must(err)
			return i.Waiting == n
		}
	}
	rw, granted := rwlock.New(l), make(chan locker.Lease)
	reads, up := lock(t, rw.Shared(), "config"), lock(t, rw.Upgradeable(), "config")
	go func() {
		lease, err := rwlock.Upgrade(t.Context(), up)
		if err != nil {
			t.Errorf("Upgrade while somebody reads: %v", err)
		}
		granted <- lease
	}()
	until(t, "the upgrade waits", waits(1))
	unlock(t, reads)
	written := <-granted
	if written == nil {
		return
	}
	go func() { granted <- lock(t, rw.Shared(), "config", locker.TTL(time.Minute)) }()
	until(t, "a reader waits", waits(1))
	lowered, err := rwlock.Downgrade(t.Context(), written)
	s.must(err)
	unlock(t, <-granted)
	unlock(t, lowered)
	up = lock(t, rw.Upgradeable(), "config")
	written, err = rwlock.Upgrade(t.Context(), up)
	s.must(err)
	unlock(t, written)
	unlock(t, lock(t, semaphore.New(l, 3).Weight(2), "permits", locker.MinHold(time.Second)))
}

// What is wrong is found when the configuration is opened, or else by the first request, and the error says what to do.
func mistakesOfSecrets(t *testing.T, s *secured) {
	other := redistest.NewAuthority(t)
	otherCA := s.file("other-ca.pem", string(other.PEM()))
	otherCert, otherKey := s.issue(other, "other-")
	alice := url.UserPassword("alice", password)
	var all sync.WaitGroup // a login that fails because of TLS takes five seconds
	defer all.Wait()
	for _, m := range []struct{ what, url, want string }{
		{"a wrong password", s.url(url.UserPassword("alice", "wrong"), nil), "check the user name and the password"},
		{"no user", s.url(nil, nil), "readwrite on all keys"}, // the name in the certificate is not one of a user
		{"another prefix", s.url(alice, map[string]string{"prefix": "other:"}), "readwrite on all keys"},
		{"a wrong CA", s.url(alice, map[string]string{"tls_ca_file": otherCA}), "set tls.ca_file"},
		{
			"no certificate", s.url(alice, map[string]string{"tls_cert_file": "", "tls_key_file": ""}),
			"set tls.cert_file and tls.key_file",
		},
		{
			"a certificate of another authority",
			s.url(alice, map[string]string{"tls_cert_file": otherCert, "tls_key_file": otherKey}), "etcd does not trust",
		},
	} {
		all.Go(func() {
			c, err := config.Parse(m.url)
			if err != nil {
				t.Error(err)
				return
			}
			for range 10 { // while the machine stalls, the cause is not found
				l, err := c.Open(t.Context())
				if err == nil {
					_, err = l.TryLock(t.Context(), "k")
					_ = l.Close()
				}
				if errors.Is(err, locker.ErrUnavailable) && strings.Contains(err.Error(), m.want) {
					return
				}
				t.Logf("%s: expected ErrUnavailable and %q, seen %v", m.what, m.want, err)
			}
			t.Errorf("%s: not the right error", m.what)
		})
	}
}

// A watch outside of the user's prefix is refused. Others go on over the same stream, and it begins when the user has
// been given the permission.
func refusedWatch(t *testing.T, s *secured) {
	c, err := config.Parse(s.url(url.UserPassword("alice", password), map[string]string{"prefix": "a"}))
	s.must(err)
	l, err := c.Open(t.Context())
	s.must(err)
	defer l.Close()
	w, _ := locker.As[inspect.Watcher](l)
	refused, permitted := make(chan struct{}, 1), make(chan struct{}, 2)
	tells := func(told chan<- struct{}) func() {
		return func() {
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}
	stop, err := w.Watch("k", tells(refused))
	s.must(err)
	defer stop()
	stop, err = w.Watch("pp:k", tells(permitted))
	s.must(err)
	defer stop()
	begun := func(watch string, told <-chan struct{}) {
		t.Helper()
		select {
		case <-told:
		case <-time.After(time.Minute):
			t.Fatalf("the watch that is %s has not begun within a minute", watch)
		}
	}
	begun("permitted", permitted) // after the other was refused
	_, err = s.root.RoleGrantPermission(t.Context(), "locks", "ak/", "ak0", clientv3.PermissionType(clientv3.PermRead))
	s.must(err)
	begun("refused", refused)
	if len(permitted) != 0 {
		t.Error("a watch began again because another one was refused")
	}
}

// etcd forgets the token of a client that has logged in. Requests go on, and so do the watches of new locks.
func expiredToken(t *testing.T, s *secured) {
	c, err := config.Parse(s.url(url.UserPassword("alice", password), nil))
	s.must(err)
	l, err := c.Open(t.Context())
	s.must(err)
	defer l.Close()
	lose := func(key string) {
		t.Helper()
		lease := lock(t, l, key, locker.TTL(time.Hour))
		_, err := s.root.Delete(t.Context(), "app:"+key+"/", clientv3.WithPrefix())
		s.must(err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		select {
		case <-lease.Done():
		case <-ctx.Done():
			t.Errorf("%s: the lease goes on for a minute after its entry was deleted", key)
		}
	}
	lose("before") // now there is a stream
	_, err = s.root.UserChangePassword(t.Context(), "alice", password)
	s.must(err)
	lease := lock(t, l, "k", locker.TTL(time.Minute))
	s.must(lease.Extend(t.Context()))
	unlock(t, lease)
	lose("after")
}

// A program gives the credentials. They are asked for with each login.
func givenCredentials(t *testing.T, s *secured) {
	c, err := config.Parse(s.url(nil, nil))
	s.must(err)
	none := errors.New("the vault is sealed")
	var given atomic.Pointer[error]
	given.Store(&none)
	c.Credentials = func(context.Context) (string, string, error) { return "alice", password, *given.Load() }
	l, err := c.Open(t.Context())
	s.must(err)
	defer l.Close()
	if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrUnavailable) || !errors.Is(err, none) {
		t.Errorf("there are no credentials: expected ErrUnavailable and the error of the function, seen %v", err)
	}
	given.Store(new(error))
	unlock(t, lock(t, l, "k"))
}

// The user is deleted, and made again with another password, which stands in the file. Then etcd is down, while another
// program opens the same configuration. Both Clients work again in the end. The file has a byte order mark.
func expelledUser(t *testing.T, s *secured) {
	const other = "hunter3"
	ctx := t.Context()
	file := s.file("changing", "\ufeff"+password+"\n")
	c, err := config.Parse(s.url(url.User("alice"), map[string]string{"password_file": file, "timeout": "2s"}))
	s.must(err)
	l, err := c.Open(ctx)
	s.must(err)
	defer l.Close()
	unlock(t, lock(t, l, "k"))
	_, err = s.root.UserDelete(ctx, "alice")
	s.must(err)
	refused := func(l locker.Locker) bool {
		_, err := l.TryLock(ctx, "k")
		if !errors.Is(err, locker.ErrUnavailable) {
			t.Fatalf("expected ErrUnavailable, seen %v", err)
		}
		return strings.Contains(err.Error(), "check the user name and the password")
	}
	until(t, "the user is refused", func() bool { return refused(l) })
	_, err = s.root.UserAdd(ctx, "alice", other)
	s.must(err)
	_, err = s.root.UserGrantRole(ctx, "alice", "locks")
	s.must(err)
	until(t, "the password is refused", func() bool { return refused(l) })
	(&store{t: t}).finds(examiner(t, l), "member", inspect.Fail, "check the user name and the password")
	s.file("changing", other+"\r\n")
	unlock(t, lock(t, l, "k", locker.Patience(time.Minute)))

	s.member.Kill()
	if _, err := l.TryLock(ctx, "k"); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("etcd is down: expected ErrUnavailable, seen %v", err)
	}
	late, err := c.Open(ctx)
	s.must(err)
	defer late.Close()
	if _, err := late.TryLock(ctx, "k"); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("etcd is down since before the opening: expected ErrUnavailable, seen %v", err)
	}
	s.member.Restart()
	for _, l := range []locker.Locker{l, late} {
		until(t, "the Client works again", func() bool {
			lease, err := l.TryLock(ctx, "k")
			if err != nil {
				return false
			}
			unlock(t, lease)
			return true
		})
	}
}

// The files of the client and of etcd are replaced by those of another authority, and etcd is restarted. A Client that
// was opened before goes on.
func replacedCertificates(t *testing.T, s *secured) {
	c, err := config.Parse(s.url(url.UserPassword("alice", "hunter3"), map[string]string{"timeout": "2s"}))
	s.must(err)
	l, err := c.Open(t.Context())
	s.must(err)
	defer l.Close()
	lease := lock(t, l, "held", locker.TTL(time.Minute))
	next := redistest.NewAuthority(t)
	s.file("ca.pem", string(next.PEM()))
	s.issue(next, "")
	s.member.Restart()
	until(t, "the Client works again", func() bool { return lease.Extend(t.Context()) == nil })
	unlock(t, lock(t, l, "k", locker.Patience(time.Minute)))
	unlock(t, lease)
}
