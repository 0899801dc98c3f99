package config

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// TLS configures encrypted connections. The zero value trusts the system's roots and checks the host name of Addr.
//
// The files are read by Open, which fails if they cannot be used, and again for every new connection, so that they can
// be replaced while the program runs. While they cannot be used then, connections use what they contained before.
type TLS struct {
	// CAFile has the certificates to trust instead of the system's, as PEM.
	CAFile string `yaml:"ca_file,omitempty" json:"ca_file,omitempty"`
	// CertFile and KeyFile are the client's own certificate and key, as PEM.
	CertFile string `yaml:"cert_file,omitempty" json:"cert_file,omitempty"`
	KeyFile  string `yaml:"key_file,omitempty" json:"key_file,omitempty"`
	// ServerName is checked in the server's certificate instead of the host in Addr.
	ServerName string `yaml:"server_name,omitempty" json:"server_name,omitempty"`
	// MinVersion is the lowest version of TLS, "1.2" or "1.3". Empty: 1.2.
	MinVersion string `yaml:"min_version,omitempty" json:"min_version,omitempty"`
}

func (t *TLS) check(report Report) {
	if t == nil {
		return
	}
	if _, ok := versions[t.MinVersion]; !ok {
		report("tls.min_version", errors.New("unknown version of TLS: give 1.2 or 1.3"))
	}
	switch {
	case t.CertFile == "" && t.KeyFile != "":
		report("tls.cert_file", errors.New("missing, although there is a key_file: give both or none"))
	case t.CertFile != "" && t.KeyFile == "":
		report("tls.key_file", errors.New("missing, although there is a cert_file: give both or none"))
	}
}

// over returns base, overridden by the settings of t.
func (t *TLS) over(base *TLS) *TLS {
	switch {
	case t == nil:
		return base
	case base == nil:
		return t
	}
	merged := *base
	if t.CAFile != "" {
		merged.CAFile = t.CAFile
	}
	if t.CertFile != "" || t.KeyFile != "" {
		merged.CertFile, merged.KeyFile = t.CertFile, t.KeyFile
	}
	if t.ServerName != "" {
		merged.ServerName = t.ServerName
	}
	if t.MinVersion != "" {
		merged.MinVersion = t.MinVersion
	}
	return &merged
}

// versions are the values of TLS.MinVersion.
var versions = map[string]uint16{"": tls.VersionTLS12, "1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// tlsFiles makes the tls.Config for each connection from what the files contain at that time.
//
// It makes a whole tls.Config each time, so that the verification of the server is the standard one, with the roots of
// one moment. The alternative is one tls.Config with InsecureSkipVerify and a VerifyConnection that does all of this.
type tlsFiles struct {
	fixed tls.Config
	roots *reread[*x509.CertPool]  // nil: the system's
	pair  *reread[tls.Certificate] // nil: none
}

// open reads the files of t for connections to addr. It returns nil if t is nil, or if it reports an error. setting
// returns the path of a setting.
func (t *TLS) open(addr string, setting func(name string) string, logger *slog.Logger, report Report) *tlsFiles {
	if t == nil {
		return nil
	}
	f := &tlsFiles{fixed: tls.Config{MinVersion: versions[t.MinVersion], ServerName: t.ServerName}}
	if t.ServerName == "" {
		f.fixed.ServerName, _, _ = net.SplitHostPort(addr)
	}
	failed := false
	begin := func(name string, begin func() error) {
		err := begin()
		report(name, err)
		failed = failed || err != nil
	}
	if t.CAFile != "" {
		const name = "tls.ca_file"
		f.roots = &reread[*x509.CertPool]{setting: setting(name), logger: logger,
			read: func() (*x509.CertPool, error) { return authorities(t.CAFile, time.Now()) }}
		begin(name, f.roots.begin)
	}
	if t.CertFile != "" {
		const name = "tls.cert_file, key_file"
		f.pair = &reread[tls.Certificate]{setting: setting(name), logger: logger,
			read: func() (tls.Certificate, error) { return keyPair(t.CertFile, t.KeyFile, time.Now()) }}
		begin(name, f.pair.begin)
	}
	if failed {
		return nil
	}
	return f
}

func (f *tlsFiles) config() *tls.Config {
	c := f.fixed.Clone()
	if f.roots != nil {
		c.RootCAs = f.roots.get()
	}
	if f.pair != nil {
		c.Certificates = []tls.Certificate{f.pair.get()}
	}
	return c
}

// Configs reads the files, and returns a function that gives the settings of crypto/tls for one new connection. The
// function reads the files again, and while they cannot be used, it goes by what they contained before. It may be
// called concurrently, and its result belongs to the caller, who sets ServerName if it is empty. Configs is for
// backends that are registered by other packages. For a nil TLS it returns a nil function, which means no encryption.
func (t *TLS) Configs() (func() *tls.Config, error) {
	var errs []error
	f := t.open("", func(name string) string { return name }, nil, func(setting string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", setting, err))
		}
	})
	if f == nil {
		return nil, errors.Join(errs...)
	}
	return f.config, nil
}

// Check reports what is wrong with t, short of reading files, for backends that are registered by other packages.
func (t *TLS) Check(report Report) { t.check(report) }

// authorities reads the certificates that are trusted.
func authorities(file string, now time.Time) (*x509.CertPool, error) {
	data, err := readPEM(file, "certificate")
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	var usable, last *x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			continue // a bundle may contain other things, and certificates that Go does not support
		}
		pool.AddCert(c)
		last = c
		if now.Before(c.NotAfter) {
			usable = c
		}
	}
	switch {
	case last == nil:
		return nil, fmt.Errorf("no PEM certificate in %s", file)
	case usable == nil:
		return nil, expired(file, last)
	}
	return pool, nil
}

// keyPair reads the certificate and the key of the client. If they are replaced between the two reads, they do not
// match, which is an error.
func keyPair(certFile, keyFile string, now time.Time) (tls.Certificate, error) {
	cert, err := readPEM(certFile, "certificate")
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := readPEM(keyFile, "key")
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return pair, fmt.Errorf("%s and %s: %w", certFile, keyFile, err)
	}
	if !now.Before(pair.Leaf.NotAfter) {
		return pair, expired(certFile, pair.Leaf)
	}
	return pair, nil
}

func expired(file string, c *x509.Certificate) error {
	return fmt.Errorf("the certificate in %s expired on %s: renew it", file, c.NotAfter.Format("2006-01-02 15:04 MST"))
}

// readPEM reads a file that must contain complete PEM blocks. what is what they should be, for errors.
func readPEM(file, what string) ([]byte, error) {
	data, err := readFile(file)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("no PEM %s in %s", what, file)
	}
	for block != nil {
		block, rest = pem.Decode(rest)
	}
	if bytes.Contains(rest, []byte("-----BEGIN ")) {
		return nil, fmt.Errorf("%s is incomplete: its last PEM block does not end", file)
	}
	return data, nil
}
