package recordtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/record"
)

// env has the address at which a process is expected that has a Store for a check. A test binary without it checks.
const env = "LOCKER_RECORDTEST"

// starting is how long the test binary may take until it comes to Run.
const starting = time.Minute

// call is what a process is to do: open a Store at the place Name, or call a method of it.
type call struct {
	Op            string
	Name, Version string
	Text          []byte
	Timeout       time.Duration
}

// answer is what the call has returned.
type answer struct {
	Text     []byte
	Version  string
	Error    string // empty: none
	Conflict bool
}

// serves does what another process asks for, until that has enough of it, if this process was started for that.
func serves(t testing.TB, open opener) bool {
	addr := os.Getenv(env)
	if addr == "" {
		return false
	}
	conn, err := net.Dial("tcp", addr) //nolint:gosec // it is that of the test that has started this process
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	serve(conn, func(place string) record.Store {
		s, _ := open(t, place)
		return s
	})
	return true
}

func serve(conn net.Conn, open func(place string) record.Store) {
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	var s record.Store
	for {
		var c call
		if in.Decode(&c) != nil {
			return
		}
		var a answer
		var err error
		ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
		switch c.Op {
		case "open":
			s = open(c.Name)
		case "get":
			a.Text, a.Version, err = s.Get(ctx, c.Name)
		case "create":
			a.Version, err = s.Create(ctx, c.Name, c.Text)
		case "replace":
			a.Version, err = s.Replace(ctx, c.Name, c.Version, c.Text)
		}
		cancel()
		if err != nil {
			a.Error, a.Conflict = err.Error(), errors.Is(err, record.ErrConflict)
		}
		if out.Encode(a) != nil {
			return
		}
	}
}

// remote is the Store of another process.
type remote struct {
	mu   sync.Mutex
	conn net.Conn
	in   *json.Decoder
	out  *json.Encoder
}

func newRemote(conn net.Conn) *remote {
	return &remote{conn: conn, in: json.NewDecoder(conn), out: json.NewEncoder(conn)}
}

// open opens the store of a place, in the place of the one before.
func (r *remote) open(t testing.TB, place string) *remote {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), starting)
	defer cancel()
	if _, err := r.do(ctx, call{Op: "open", Name: place}); err != nil {
		t.Fatalf("another process, which opens the store at %q: %v", place, err)
	}
	return r
}

func (r *remote) do(ctx context.Context, c call) (a answer, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	end, _ := ctx.Deadline()
	c.Timeout = time.Until(end)
	_ = r.conn.SetDeadline(end.Add(limit)) // its Store may need longer than it should
	if err := r.out.Encode(c); err != nil {
		return a, fmt.Errorf("another process, which has ended: %w", err)
	}
	if err := r.in.Decode(&a); err != nil {
		return a, fmt.Errorf("another process, which has ended: %w", err)
	}
	switch {
	case a.Conflict:
		return a, fmt.Errorf("another process: %w: %s", record.ErrConflict, a.Error)
	case a.Error != "":
		return a, errors.New("another process: " + a.Error)
	}
	return a, nil
}

// Get implements record.Store.
func (r *remote) Get(ctx context.Context, name string) ([]byte, string, error) {
	a, err := r.do(ctx, call{Op: "get", Name: name})
	return a.Text, a.Version, err
}

// Create implements record.Store.
func (r *remote) Create(ctx context.Context, name string, text []byte) (string, error) {
	a, err := r.do(ctx, call{Op: "create", Name: name, Text: text})
	return a.Version, err
}

// Replace implements record.Store.
func (r *remote) Replace(ctx context.Context, name, version string, text []byte) (string, error) {
	a, err := r.do(ctx, call{Op: "replace", Name: name, Version: version, Text: text})
	return a.Version, err
}

// output is what a process has printed.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start starts n processes that come to the Run of which t is a rule, until end is called. They also end if this
// process is killed, because their connections do.
func start(t testing.TB, n int) (all []*remote, end func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(starting))
	var printed output
	var running sync.WaitGroup
	end = func() {
		_ = l.Close()
		for _, r := range all {
			_ = r.conn.Close()
		}
		running.Wait()
		if t.Failed() {
			t.Logf("the other processes have printed:\n%s", &printed)
		}
	}
	ready := false
	defer func() {
		if !ready {
			end()
		}
	}()
	for range n {
		cmd := again(t, path.Dir(t.Name()))
		cmd.Env = append(cmd.Environ(), env+"="+l.Addr().String())
		cmd.Stdout, cmd.Stderr = &printed, &printed
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			_ = cmd.Wait()
			_ = l.Close() // if it has not come to Run, nothing is to be waited for
		})
	}
	for range n {
		conn, err := l.Accept()
		if err != nil {
			t.Fatalf("%s in another process: expected it to come to Run, seen %v", path.Dir(t.Name()), err)
		}
		all = append(all, newRemote(conn))
	}
	ready = true
	return all, end
}

// again returns a command that runs a test of this binary alone.
func again(t testing.TB, name string) *exec.Cmd {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var pattern []string
	for _, part := range strings.Split(name, "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	args := []string{"-test.run=" + strings.Join(pattern, "/"), "-test.count=1"}
	flag.Visit(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") || f.Name == "test.short" {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	return exec.Command(binary, append(args, flag.Args()...)...)
}
