package doctor

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/golocker/locker/drivers"
)

const (
	// probing limits one attempt to find out which protocol a server uses.
	probing = time.Second
	// greeting is how long to wait for a server that refuses the connection before any command.
	greeting = 100 * time.Millisecond
)

// Probe finds out why a server cannot be used if a client's error is not a reply of the server. Clients hide the cause:
// some report "broken pipe" if the server refused the connection and closed it, and all report silence or a closed
// connection if only one side uses TLS. Probe therefore sends a PING over a connection without a client. It takes two
// seconds at most. It returns false if it does not find the cause. Of sentinels and of a cluster, it examines the
// servers whose addresses are given, and only whether they speak TLS.
func Probe(ctx context.Context, dial drivers.Config, user string) (Cause, bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*probing)
	defer cancel()
	if dial.Topology() == drivers.Standalone {
		return probe(ctx, dial, user)
	}
	var servers []drivers.Config
	kind := "+cluster://"
	if dial.Sentinel != nil {
		kind = "+sentinel://"
		for _, addr := range dial.Sentinel.Addrs {
			s := dial.At(addr)
			s.TLS, s.GetTLS = dial.Sentinel.TLS, dial.Sentinel.GetTLS
			servers = append(servers, s)
		}
	}
	for _, addr := range dial.Cluster {
		servers = append(servers, dial.At(addr))
	}
	for _, s := range servers {
		switch c, _ := probe(ctx, s, user); c {
		case noTLS:
			return Cause{c.Text, "write redis" + kind + " instead of rediss" + kind + ", or give its TLS port"}, true
		case wantsTLS:
			return Cause{c.Text, "write rediss" + kind + " instead of redis" + kind + ", or give its port without TLS"}, true
		}
	}
	return Cause{}, false
}

var (
	noTLS = Cause{"it does not speak TLS on this port",
		"write redis:// instead of rediss:// (redlock:// instead of redlocks://), or give its TLS port"}
	wantsTLS = Cause{"it wants TLS",
		"write rediss:// instead of redis:// (redlocks:// instead of redlock://), or give its port without TLS"}
)

func probe(ctx context.Context, dial drivers.Config, user string) (Cause, bool) {
	plain := dial
	plain.TLS = nil
	line, _ := ping(ctx, plain)
	isReply := strings.HasPrefix(line, "+") || strings.HasPrefix(line, "-")
	switch {
	case isReply && dial.TLS != nil:
		return noTLS, true
	case strings.HasPrefix(line, "-"):
		return Refusal(drivers.ServerError(line[1:]), user), true
	case isReply: // the server answers now
		return Cause{}, false
	case dial.TLS != nil:
		_, err := ping(ctx, dial)
		return clientCertificate(dial, err)
	case speaksTLS(ctx, dial):
		return wantsTLS, true
	case line != "":
		return Cause{"this is not a Redis server", "correct host and port"}, true
	}
	return Cause{}, false
}

// ConnectError explains an error that contains the reason why there is no connection.
func ConnectError(dial drivers.Config, err error) (Cause, bool) {
	if errors.As(err, new(x509.UnknownAuthorityError)) {
		return Cause{"its certificate is signed by an authority that is not trusted here",
			"give the PEM file with the certificate of that authority as tls_ca_file"}, true
	}
	if errors.As(err, new(x509.HostnameError)) {
		return Cause{"its certificate is made out to another name",
			"give the name in the certificate as the host, or as tls_server_name"}, true
	}
	var e x509.CertificateInvalidError
	if errors.As(err, &e) && e.Reason == x509.Expired {
		return Cause{"its certificate has expired, or is not valid yet", "renew it, or set the clock right"}, true
	}
	if errors.As(err, new(*net.DNSError)) {
		return Cause{"no connection: the host name cannot be resolved", "correct the host name, or mend the DNS"}, true
	}
	unix, sentinels := dial.Network == "unix", dial.Topology() == drivers.SentinelMaster
	switch {
	case sentinels && strings.Contains(err.Error(), "knows no master named "):
		return Cause{"the sentinels do not know the master by this name",
			"correct the name; SENTINEL MASTERS on a sentinel lists those that it knows"}, true
	case dial.Topology() == drivers.RedisCluster && strings.Contains(err.Error(), "not a node of a Redis Cluster"):
		return noCluster, true
	case sentinels && errors.Is(err, syscall.ECONNREFUSED):
		return Cause{"no connection: nobody listens on this port",
			"start the sentinels, and the master that they name, or correct the addresses"}, true
	case unix && errors.Is(err, fs.ErrNotExist):
		return Cause{"no connection: there is no such socket",
			"start redis-server, or correct the path: it is unixsocket in redis.conf"}, true
	case unix && errors.Is(err, fs.ErrPermission):
		return Cause{"no connection: no permission for the socket",
			"set unixsocketperm in redis.conf so that this user may write to it"}, true
	case unix && errors.Is(err, syscall.ECONNREFUSED):
		return Cause{"no connection: nobody listens on the socket any more", "start redis-server"}, true
	case errors.Is(err, syscall.ECONNREFUSED):
		return Cause{"no connection: nobody listens on this port", "start redis-server, or correct host and port"}, true
	}
	return clientCertificate(dial, err)
}

// clientCertificate explains the alerts by which a server asks for another client certificate.
func clientCertificate(dial drivers.Config, err error) (Cause, bool) {
	if err == nil || dial.TLS == nil || !alert(err) {
		return Cause{}, false
	}
	if len(dial.TLS.Certificates) == 0 {
		return Cause{"it wants a client certificate",
			"give tls_cert_file and tls_key_file, or set tls-auth-clients no on the server"}, true
	}
	return Cause{"it refuses the client certificate",
		"give one that is signed by an authority in the server's tls-ca-cert-file"}, true
}

// alert reports whether err is a TLS alert of the other side.
func alert(err error) bool {
	var op *net.OpError
	ok := errors.As(err, &op)
	return ok && op.Op == "remote error"
}

// ping sends PING and returns the first line of the answer, which the server may have sent before the PING.
func ping(ctx context.Context, dial drivers.Config) (line string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probing)
	defer cancel()
	conn, err := dial.Dial(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	end, _ := ctx.Deadline()
	r := bufio.NewReader(io.LimitReader(conn, 4096))
	_ = conn.SetDeadline(earlier(end, time.Now().Add(greeting)))
	if line, err = r.ReadString('\n'); line == "" && errors.Is(err, os.ErrDeadlineExceeded) {
		_ = conn.SetDeadline(end)
		if _, err = conn.Write([]byte("PING\r\n")); err == nil {
			line, err = r.ReadString('\n')
		}
	}
	return strings.TrimSpace(line), err
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func speaksTLS(ctx context.Context, dial drivers.Config) bool {
	ctx, cancel := context.WithTimeout(ctx, probing)
	defer cancel()
	dial.TLS = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // nothing is sent
	conn, err := dial.Dial(ctx)
	if err != nil {
		return alert(err)
	}
	_ = conn.Close()
	return true
}
