package lockcertmagic_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockcertmagic"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	instance.Main(play)
	redistest.Main(m)
}

// ttl is short, and tolerates that a process stands still for two seconds.
const ttl = 5 * time.Second

// play is an instance that obtains a certificate. It says what it does with the lock and when it issues, which it goes
// on with when the test says so. args are the URL of the locks and the directory of the certificates. Without a URL,
// there are no locks.
func play(me *instance.Self, args []string) error {
	url, dir := args[0], args[1]
	ctx := context.Background()
	var storage certmagic.Storage = lockless{&certmagic.FileStorage{Path: dir}}
	if url != "" {
		l, err := config.Open(ctx, url, locker.TTL(ttl))
		if err != nil {
			return err
		}
		storage = &telling{lockcertmagic.New(storage, watched{l, me}), me}
	}
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return nil, nil },
		Logger:           zap.NewNop(),
	})
	c := certmagic.New(cache, certmagic.Config{
		Storage: storage, Issuers: []certmagic.Issuer{issuer{me}}, Logger: zap.NewNop(),
	})
	me.Ask("ready")
	if err := c.ObtainCertAsync(ctx, "example.com"); err != nil {
		return err
	}
	me.Say("done")
	return nil
}

// lockless is a storage without locks.
type lockless struct{ certmagic.Storage }

func (lockless) Lock(context.Context, string) error   { return nil }
func (lockless) Unlock(context.Context, string) error { return nil }

// telling is a Storage that says what is done with its locks.
type telling struct {
	*lockcertmagic.Storage
	me *instance.Self
}

func (s *telling) Lock(ctx context.Context, name string) error {
	s.me.Say("asks for %s", name)
	return s.Storage.Lock(ctx, name)
}

func (s *telling) Unlock(ctx context.Context, name string) error {
	err := s.Storage.Unlock(ctx, name)
	if err != nil {
		s.me.Say("unlocked: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return err
}

// watched is a Locker that says how its leases end.
type watched struct {
	locker.Locker
	me *instance.Self
}

func (w watched) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := w.Locker.Lock(ctx, key, opts...)
	if err == nil {
		go func() {
			<-lease.Done()
			w.me.Say("ended: %v", lease.Err())
		}()
	}
	return lease, err
}

// issuer signs certificates itself.
type issuer struct{ me *instance.Self }

func (issuer) IssuerKey() string { return "test" }

func (i issuer) Issue(_ context.Context, r *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	i.me.Ask("issues")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: r.DNSNames, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, r.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}, nil
}
