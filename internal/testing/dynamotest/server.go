//go:build unix

// Package dynamotest starts dynalite, a server with the API of DynamoDB, for tests. It needs node and npm, which
// installs dynalite into the cache of this machine's user on first use. Each server listens on a free port of the
// loopback interface, keeps its files in a directory of its own, and ends with its test, in whatever way the test
// process ends.
package dynamotest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/testserver"
)

// version is that of dynalite.
const version = "4.0.0"

const howTo = "this test needs node 20 or later, and npm: install them (scripts/need-node.sh; macOS: brew install " +
	"node), or run the tests by `make test`, which does so"

// Server is one dynalite with the tables of a test, and a Link to it. A table survives Kill, as far as files do.
type Server struct {
	testserver.Server
	*Link
	tb   testing.TB
	dir  string
	addr string // its own, behind the links
}

// Start runs a server without tables until the test ends.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{tb: tb, dir: tb.TempDir(), addr: testserver.FreeAddr(tb)}
	s.Link = s.NewLink(tb)
	tb.Cleanup(s.Kill)
	s.run()
	return s
}

// survive is a program that runs before dynalite. Without it, dynalite ends when a connection breaks while a request
// arrives. The request is not executed.
const survive = `data:text/javascript,process.on("uncaughtException", e => { if (e.code != "ECONNRESET") throw e })`

// run starts the process, and waits until it serves.
func (s *Server) run() {
	s.tb.Helper()
	program := testserver.Cached(s.tb, "dynalite-"+version+"/installed", install)
	host, port, _ := net.SplitHostPort(s.addr)
	err := s.Launch("node", s.dir, nil, []string{
		"--import", survive, filepath.Join(program, "node_modules", "dynalite", "cli.js"), "--host", host, "--port", port,
		"--path", filepath.Join(s.dir, "tables"), "--createTableMs", "0", "--deleteTableMs", "0",
	})
	if err == nil {
		err = s.Await(func() bool {
			_, err := s.send(http.MethodGet, "", "")
			return err == nil
		})
	}
	if err != nil {
		s.tb.Fatalf("dynamotest: %v: %s", err, howTo)
	}
}

// install installs dynalite into a directory. What it depends on is not pinned.
func install(path string) error {
	out, err := exec.Command("npm", "install", "--prefix", path, "--no-save", "--ignore-scripts", "--no-audit",
		"--no-fund", "dynalite@"+version).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: npm install dynalite@%s: %w\n%s", howTo, version, err, out)
	}
	return nil
}

// Restart kills the server, and starts it again with its tables.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.run()
}

// Table creates a table as locks need it.
func (s *Server) Table(tb testing.TB, name string) {
	tb.Helper()
	_, err := s.send(http.MethodPost, "CreateTable", fmt.Sprintf(`{"TableName": %q, "BillingMode": "PAY_PER_REQUEST",
		"AttributeDefinitions": [{"AttributeName": "name", "AttributeType": "S"}],
		"KeySchema": [{"AttributeName": "name", "KeyType": "HASH"}]}`, name))
	for end := time.Now().Add(testserver.StartTimeout); err == nil; <-time.After(time.Millisecond) {
		var table []byte
		table, err = s.send(http.MethodPost, "DescribeTable", fmt.Sprintf(`{"TableName": %q}`, name))
		if bytes.Contains(table, []byte(`"TableStatus":"ACTIVE"`)) {
			return
		}
		if time.Now().After(end) {
			err = fmt.Errorf("the table is not active: %s", table)
		}
	}
	tb.Fatalf("dynamotest: %v", err)
}

// client keeps no connections, which would be missed when a test looks for goroutines.
var client = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// send sends a request to the server itself, past its links. dynalite looks at the form of a signature only.
func (s *Server) send(method, action, body string) ([]byte, error) {
	req, err := http.NewRequest(method, "http://"+s.addr, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=id/1/r/dynamodb/aws4_request, SignedHeaders=host, "+
		"Signature=none")
	req.Header.Set("X-Amz-Date", "20260101T000000Z")
	req.Header.Set("Content-Type", "application/x-amz-json-1.0")
	req.Header.Set("X-Amz-Target", target+action)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, answer)
	}
	return answer, err
}

// target is what a header of each request has before the name of the operation.
const target = "DynamoDB_20120810."

// Link is a way to a server, with faults of its own, so that several tests can share the server.
type Link struct {
	*testserver.Relay
	losing bool // the answer to the next request is lost
}

// NewLink makes one more Link, which ends with tb.
func (s *Server) NewLink(tb testing.TB) *Link {
	tb.Helper()
	l := new(Link)
	l.Relay = testserver.NewRelay(tb, s.addr, l.connection)
	return l
}

// URL returns the endpoint for clients.
func (l *Link) URL() string { return "http://" + l.Addr() }

// LoseReply lets the next request for an item reach the server, and closes the connection instead of passing the
// answer on.
func (l *Link) LoseReply() { l.Set(func() { l.losing = true }) }

func (l *Link) connection() (requests, replies testserver.Side) {
	lost := false // the next answer on this connection
	requests = testserver.Side{Read: testserver.Chunks(), Decide: func(b []byte) testserver.Action {
		if l.losing && bytes.Contains(b, []byte(target)) && !bytes.Contains(b, []byte(target+"DescribeTable")) {
			l.losing, lost = false, true
		}
		return testserver.Pass
	}}
	replies = testserver.Side{Read: testserver.Chunks(), Decide: func([]byte) testserver.Action {
		if lost {
			return testserver.Cut
		}
		return testserver.Pass
	}}
	return requests, replies
}
