package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// StartTLS is [Start] for a server whose port speaks TLS only. The configuration that comes back trusts the server's
// certificate, which is made out to 127.0.0.1 and localhost; no client certificate is asked for.
func StartTLS(tb testing.TB, args ...string) (*Server, *tls.Config) {
	tb.Helper()
	s := prepare(tb, nil)
	certFile, keyFile := filepath.Join(s.dir, "server.crt"), filepath.Join(s.dir, "server.key")
	s.caFile = filepath.Join(s.dir, "ca.crt")
	pool, err := certify(s.caFile, certFile, keyFile)
	if err != nil {
		tb.Fatalf("redistest: certificates: %v", err)
	}
	s.tls = true
	s.extra = append([]string{
		"--tls-cert-file", certFile, "--tls-key-file", keyFile, "--tls-ca-cert-file", s.caFile, "--tls-auth-clients",
		"no",
	}, args...)
	s.launch()
	return s, &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

// CAFile returns the path of the PEM file that holds the authority behind the server's certificate, "" for a server
// without TLS.
func (s *Server) CAFile() string { return s.caFile }

// certify makes an authority and a server certificate signed by it, both good for a day.
func certify(caFile, certFile, keyFile string) (*x509.CertPool, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redistest authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "redistest server"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return nil, err
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	for _, file := range []struct {
		path, kind string
		der        []byte
	}{{caFile, "CERTIFICATE", caDER}, {certFile, "CERTIFICATE", leafDER}, {keyFile, "PRIVATE KEY", keyDER}} {
		block := pem.EncodeToMemory(&pem.Block{Type: file.kind, Bytes: file.der})
		if err := os.WriteFile(file.path, block, 0o600); err != nil {
			return nil, err
		}
	}
	authority, err := x509.ParseCertificate(caDER)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(authority)
	return pool, nil
}
