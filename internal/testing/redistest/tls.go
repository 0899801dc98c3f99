package redistest

import (
	"bytes"
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// StartTLS is [Start] for a server whose port speaks TLS only. The configuration that comes back trusts the server's
// certificate, which is made out to 127.0.0.1 and localhost. The server asks for no client certificate, unless args say
// otherwise ("--tls-auth-clients", "yes"): it trusts those of its [Server.Authority].
func StartTLS(tb testing.TB, args ...string) (*Server, *tls.Config) {
	tb.Helper()
	a := NewAuthority(tb)
	return a.Start(tb, args...), &tls.Config{RootCAs: a.pool(), MinVersion: tls.VersionTLS12}
}

// Start is [StartTLS] for a server whose certificate is issued by a, and which trusts the client certificates of a.
func (a *Authority) Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := a.prepare(tb, args)
	s.launch()
	return s
}

func (a *Authority) prepare(tb testing.TB, args []string) *Server {
	tb.Helper()
	s := prepare(tb, nil)
	s.tls = true
	s.certify(tb, a, a)
	s.extra = append([]string{
		"--tls-cert-file", s.file("server.crt"), "--tls-key-file", s.file("server.key"),
		"--tls-ca-cert-file", s.CAFile(), "--tls-auth-clients", "no",
	}, args...)
	return s
}

// Authority returns the authority behind the certificate of a server with TLS.
func (s *Server) Authority() *Authority { return s.authority }

// CAFile returns the path of the PEM file with the authorities that the server trusts. One of them is the authority
// behind the server's own certificate, unless [Server.Certify] has separated the two.
func (s *Server) CAFile() string {
	if !s.tls {
		return ""
	}
	return s.file("ca.crt")
}

// Certify gives a running server a new certificate by an authority, and makes it trust the certificates of others. This
// concerns new connections. Redis before version 7 cannot set several options at once, and is restarted instead.
func (s *Server) Certify(tb testing.TB, by *Authority, trusted ...*Authority) {
	tb.Helper()
	s.certify(tb, by, trusted...)
	_, err := s.Do("CONFIG", "SET", "tls-cert-file", s.file("server.crt"), "tls-key-file", s.file("server.key"),
		"tls-ca-cert-file", s.file("ca.crt"))
	if err != nil {
		s.Restart()
	}
}

func (s *Server) certify(tb testing.TB, by *Authority, trusted ...*Authority) {
	tb.Helper()
	s.authority = by
	var authorities bytes.Buffer
	for _, a := range trusted {
		authorities.Write(a.PEM())
	}
	cert, key := by.Issue(tb, 24*time.Hour)
	for name, content := range map[string][]byte{"server.crt": cert, "server.key": key, "ca.crt": authorities.Bytes()} {
		if err := os.WriteFile(s.file(name), content, 0o600); err != nil {
			tb.Fatalf("redistest: %v", err)
		}
	}
}

func (s *Server) file(name string) string { return filepath.Join(s.dir, name) }
