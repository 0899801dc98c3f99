package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
)

// TLS configures encrypted connections. The zero value trusts the system's roots and checks the host name of Addr.
type TLS struct {
	// CAFile has the certificates to trust instead of the system's, as PEM.
	CAFile string `yaml:"ca_file,omitempty" json:"ca_file,omitempty"`
	// CertFile and KeyFile are the client's own certificate and key, as PEM.
	CertFile string `yaml:"cert_file,omitempty" json:"cert_file,omitempty"`
	KeyFile  string `yaml:"key_file,omitempty" json:"key_file,omitempty"`
	// ServerName is checked in the server's certificate instead of the host in Addr.
	ServerName string `yaml:"server_name,omitempty" json:"server_name,omitempty"`
}

func (t *TLS) check(report Report) {
	switch {
	case t == nil:
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
	return &merged
}

// config returns the tls.Config for connections to addr. It returns nil if t is nil.
func (t *TLS) config(addr string, report Report) *tls.Config {
	if t == nil {
		return nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if c.ServerName == "" {
		c.ServerName, _, _ = net.SplitHostPort(addr)
	}
	if t.CAFile != "" {
		pem, err := readFile(t.CAFile)
		c.RootCAs = x509.NewCertPool()
		switch {
		case err != nil:
			report("tls.ca_file", err)
		case !c.RootCAs.AppendCertsFromPEM(pem):
			report("tls.ca_file", fmt.Errorf("no PEM certificate in %s", t.CAFile))
		}
	}
	if t.CertFile != "" {
		cert, err := keyPair(t.CertFile, t.KeyFile)
		report("tls.cert_file, key_file", err)
		c.Certificates = []tls.Certificate{cert}
	}
	return c
}

func keyPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := readFile(certFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := readFile(keyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return pair, fmt.Errorf("%s and %s: %w", certFile, keyFile, err)
	}
	return pair, nil
}
