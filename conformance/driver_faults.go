package conformance

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
)

// stall is the time limit of calls that are not answered.
const stall = 100 * time.Millisecond

func unreachableIsNotSent(t testing.TB, h DriverHarness) {
	addr := "127.0.0.1:1"
	if h.Unreachable != nil {
		addr = h.Unreachable(t)
	}
	d := openDriver(t, h, addr)
	for range 2 { // a client may treat the second failure differently
		_, err := attempt(t, d, hangLimit, drivers.Command{"PING"})
		expectNotSent(t, "one command", err)
		_, err = attempt(t, d, hangLimit, drivers.Command{"PING"}, drivers.Command{"PING"})
		expectNotSent(t, "a batch", err)
	}
}

// throughRelay opens a driver whose connections pass through a relay, and sends a command, so that the handshake is
// complete. The witness is connected to the server directly and shows which commands were executed.
func throughRelay(t testing.TB, h DriverHarness) (d, witness drivers.Driver, r *relay) {
	t.Helper()
	addr := h.Addr(t)
	r = newRelay(t, addr)
	r.up(t)
	witness = openDriver(t, h, addr)
	d = openDriver(t, h, r.addr)
	must(t, d, drivers.Command{"PING"})
	must(t, d, drivers.Command{"PING"}, drivers.Command{"PING"})
	return d, witness, r
}

func atMostOnce(t testing.TB, h DriverHarness) {
	d, witness, r := throughRelay(t, h)
	for _, batch := range []int{1, 3} {
		keys := make([]string, batch)
		cmds := make([]drivers.Command, batch)
		for i := range cmds {
			keys[i] = newKey(t, witness)
			cmds[i] = drivers.Command{"INCR", keys[i]}
		}
		r.cutAfter(keys[0])
		if replies, err := attempt(t, d, hangLimit, cmds...); err == nil {
			t.Errorf("%s, its reply lost: expected an error, seen replies %s", name(cmds), show(replies))
		}
		if !r.seen() {
			t.Errorf("%s: expected it to be sent, seen nothing pass", name(cmds))
			continue
		}
		// The server executes received commands even if the connection is closed, but perhaps a little later.
		last := drivers.Command{"EXISTS", keys[batch-1]}
		for end := time.Now().Add(hangLimit); must(t, witness, last)[0] != int64(1) && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		eventually(t, d, drivers.Command{"PING"}) // the driver has now sent everything that it would send
		for i, key := range keys {
			if seen := must(t, witness, drivers.Command{"GET", key})[0]; seen != "1" {
				t.Errorf("command %d of %d, its reply lost: expected it executed once, seen a counter of %s", i+1,
					batch, show(seen))
			}
		}
	}
}

func notSentIsCertain(t testing.TB, h DriverHarness) {
	d, witness, r := throughRelay(t, h)
	check := func(what string, cmds ...drivers.Command) {
		t.Helper()
		_, err := attempt(t, d, stall, cmds...)
		if r.seen() && errors.Is(err, drivers.ErrNotSent) {
			t.Errorf("%s: expected an error that does not match ErrNotSent, for the server has the command; seen %q",
				what, err)
		}
	}
	for _, what := range []string{"one command", "a batch"} {
		cmds := []drivers.Command{{"INCR", newKey(t, witness)}}
		if what == "a batch" {
			cmds = append(cmds, cmds[0])
		}
		r.cutAfter(cmds[0][1])
		check(what+", connection lost", cmds...)
		eventually(t, d, drivers.Command{"PING"})
		r.swallowAfter(cmds[0][1])
		check(what+", reply swallowed", cmds...)
		eventually(t, d, drivers.Command{"PING"})
	}
}

func deadlineBounds(t testing.TB, h DriverHarness) {
	var patient sync.WaitGroup
	t.Cleanup(patient.Wait)
	mute := openDriver(t, h, muteServer(t))
	for _, cmds := range [][]drivers.Command{{{"PING"}}, {{"PING"}, {"PING"}}} {
		if _, err := attempt(t, mute, stall, cmds...); err == nil {
			t.Errorf("%s to a server that never answers: expected an error, seen none", name(cmds))
		}
	}
	// A client that opens one connection for all callers might apply the first caller's deadline to all of them.
	shared := openDriver(t, h, muteServer(t))
	patient.Go(func() { _, _ = shared.Do(context.WithoutCancel(t.Context()), drivers.Command{"PING"}) })
	time.Sleep(stall / 10) // no assertion depends on the order
	for range 3 {          // on a busy machine the first one may be ahead of the other caller
		if _, err := attempt(t, shared, stall, drivers.Command{"PING"}); err == nil {
			t.Errorf("PING beside a caller without a deadline: expected an error, seen none")
		}
	}
	d, witness, r := throughRelay(t, h)
	for _, n := range []int{1, 2} {
		cmds := []drivers.Command{{"INCR", newKey(t, witness)}, {"PING"}}[:n]
		r.swallowAfter(cmds[0][1])
		if _, err := attempt(t, d, stall, cmds...); err == nil {
			t.Errorf("%s on a connection that fell silent: expected an error, seen none", name(cmds))
		}
	}
}

// lateRepliesAreNobodys has a reply arrive when its caller has gone away: before other calls, or while they are under
// way. These may fail, but not succeed with another reply than their own.
func lateRepliesAreNobodys(t testing.TB, h DriverHarness) {
	d, _, r := throughRelay(t, h)
	echo := func(batch int) (cmds []drivers.Command, text string) {
		text = rand.Text()
		return slices.Repeat([]drivers.Command{{"ECHO", text}}, batch), text
	}
	for i := range 8 {
		cancelled, during, batch := i%2 == 1, i/2%2 == 1, 1+i/4
		eventually(t, d, drivers.Command{"PING"})
		cmds, text := echo(batch)
		deliver := r.holdAfter(t, text)
		limit := stall
		if cancelled {
			limit = hangLimit
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = d.Do(ctx, cmds...)
		}()
		if cancelled {
			time.Sleep(stall)
			cancel()
		}
		select { // a client that cannot be interrupted may return when the reply is there
		case <-gone:
		case <-time.After(stall + stall/2):
		}
		if !during {
			deliver()
			time.Sleep(stall / 10) // until it has arrived; no assertion depends on it
		}
		var others sync.WaitGroup
		others.Go(func() {
			for range 4 { // for every connection that a pool may have kept
				ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
				own, text := echo(batch)
				replies, err := d.Do(ctx, own...)
				cancel()
				for _, reply := range replies {
					if err == nil && reply != text {
						t.Errorf("%s after a call whose context ended before its reply: expected the reply %q to its own "+
							"command, seen %s", name(own), text, show(reply))
					}
				}
			}
		})
		time.Sleep(stall / 10)
		deliver()
		others.Wait()
		await(t, "Do to return when the reply to its command was there", gone, hangLimit)
		cancel()
	}
}

func endedContextSendsNothing(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	key := newKey(t, d)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	expired, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	for _, warm := range []bool{false, true} {
		for what, ctx := range map[string]context.Context{"a cancelled context": cancelled,
			"an expired context": expired} {
			_, err := call(ctx, t, d, slack, drivers.Command{"INCR", key})
			expectNotSent(t, what, err)
			_, err = call(ctx, t, d, slack, drivers.Command{"INCR", key}, drivers.Command{"INCR", key})
			expectNotSent(t, what+", batch", err)
		}
		if !warm {
			must(t, d, drivers.Command{"PING"})
		}
	}
	expect(t, "whether anything was executed", int64(0), must(t, d, drivers.Command{"EXISTS", key})[0])
}

func opensWhileDown(t testing.TB, h DriverHarness) {
	r := newRelay(t, h.Addr(t))
	d := openDriver(t, h, r.addr)
	_, err := attempt(t, d, hangLimit, drivers.Command{"PING"})
	expectNotSent(t, "server down", err)
	r.up(t)
	eventually(t, d, drivers.Command{"PING"})
}

func recoversAfterOutage(t testing.TB, h DriverHarness) {
	d, _, r := throughRelay(t, h)
	r.down()
	for range 3 {
		if _, err := attempt(t, d, hangLimit, drivers.Command{"PING"}); err == nil {
			t.Errorf("server down: expected an error, seen none")
		}
	}
	r.up(t)
	eventually(t, d, drivers.Command{"PING"})
	for range 20 { // for every connection that a pool may have kept
		_, _ = attempt(t, d, hangLimit, drivers.Command{"PING"}, drivers.Command{"PING"})
	}
	expect(t, "server back", []drivers.Reply{"PONG", "PONG"},
		must(t, d, drivers.Command{"PING"}, drivers.Command{"PING"}))
}

func closeIsIdempotentAndFinal(t testing.TB, h DriverHarness) {
	addr := h.Addr(t)
	witness := openDriver(t, h, addr)
	key := newKey(t, witness)
	for _, used := range []bool{false, true} {
		d := openDriver(t, h, addr) // which closes it a third time
		if used {
			must(t, d, drivers.Command{"PING"})
		}
		for range 2 {
			if err := d.Close(); err != nil {
				t.Errorf("Close: expected no error, seen %v", err)
			}
			_, err := attempt(t, d, hangLimit, drivers.Command{"INCR", key})
			expectNotSent(t, "Do after Close", err)
		}
	}
	expect(t, "whether anything was executed after Close", int64(0),
		must(t, witness, drivers.Command{"EXISTS", key})[0])
}

// batchUsesOneConnection asks for the IDs of connections, in several calls at a time so that the client has several
// connections.
func batchUsesOneConnection(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	if _, ok := d.(drivers.Cluster); ok {
		return
	}
	eventually(t, d, drivers.Command{"PING"})
	id := func() drivers.Command { return drivers.Command{"CLIENT", "ID"} } // of each call its own
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			for range 10 {
				replies, err := d.Do(t.Context(), id(), id(), id())
				if err != nil {
					t.Errorf("%s: expected no error, seen %v", name([]drivers.Command{id()}), err)
					return
				}
				for _, r := range replies {
					if _, ok := r.(drivers.ServerError); !ok && show(r) != show(replies[0]) {
						t.Errorf("the IDs of the connections of one call: expected the same, seen %s", show(replies))
						return
					}
				}
			}
		})
	}
	calls.Wait()
}

// leavesAReplica has a script answer as a replica does, until the server has none of the connections of before.
func leavesAReplica(t testing.TB, h DriverHarness) {
	addr := h.Addr(t)
	d, witness := openDriver(t, h, addr), openDriver(t, h, addr)
	if _, ok := d.(drivers.Cluster); ok {
		return
	}
	eventually(t, d, drivers.Command{"PING"})
	const text = "READONLY You can't write against a read only replica."
	write := drivers.Command{"EVAL", `return redis.error_reply("` + text + `")`, "0"}
	for _, cmds := range [][]drivers.Command{{write}, {{"PING"}, write}} {
		before := connectionsOf(t, d)
		left := func() bool {
			replies, err := attempt(t, d, hangLimit, cmds...)
			if err == nil && replies[len(cmds)-1] != drivers.ServerError(text) {
				t.Fatalf("%s: expected the refusal %q, seen %s", name(cmds), text, show(replies))
			}
			list, _ := must(t, witness, drivers.Command{"CLIENT", "LIST"})[0].(string)
			return !slices.ContainsFunc(before, func(id string) bool { return strings.Contains(list, "id="+id+" ") })
		}
		if !until(hangLimit, left) {
			t.Errorf("%s, refused with READONLY for %v: expected new connections, seen those of before", name(cmds),
				hangLimit)
		}
	}
}

// connectionsOf returns the IDs of the connections that several calls at a time use.
func connectionsOf(t testing.TB, d drivers.Driver) []string {
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	ids := make([]string, 4)
	var calls sync.WaitGroup
	for i := range ids {
		calls.Go(func() {
			if replies, err := d.Do(ctx, drivers.Command{"CLIENT", "ID"}); err == nil {
				ids[i] = show(replies[0])
			}
		})
	}
	calls.Wait()
	return ids
}

// blocked is how long a server waits for replicas that do not exist.
const blocked = 2 * time.Second

// waitBlocksNobodyElse has two calls wait for more replicas than any server has. Meanwhile others are answered.
func waitBlocksNobodyElse(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	if _, ok := d.(drivers.Cluster); ok {
		return
	}
	eventually(t, d, drivers.Command{"PING"})
	key := newKey(t, d)
	must(t, d, drivers.Command{"SET", key, "0"})
	var calls sync.WaitGroup
	defer calls.Wait()
	start := time.Now()
	for range 2 {
		calls.Go(func() {
			wait := drivers.Command{"WAIT", "1000", "2000"}
			replies, err := d.Do(t.Context(), drivers.Command{"INCR", key}, wait)
			if err != nil || len(replies) != 2 {
				t.Errorf("WAIT: expected two replies and no error, seen %s, %v", show(replies), err)
			} else if _, refused := replies[1].(drivers.ServerError); !refused && time.Since(start) < blocked {
				t.Errorf("WAIT: expected an answer after %v, seen %s after %v", blocked, show(replies), time.Since(start))
			}
		})
	}
	for seen := drivers.Reply(nil); seen != "2"; { // until both are blocked
		seen = must(t, d, drivers.Command{"GET", key})[0]
		if took := time.Since(start); took >= blocked {
			t.Fatalf("calls beside a WAIT: expected answers within %v, seen them after %v", blocked, took)
		}
	}
	must(t, d, drivers.Command{"PING"})
	if took := time.Since(start); took >= blocked {
		t.Errorf("PING beside a WAIT: expected an answer within %v, seen one after %v", blocked, took)
	}
}

// relay is a proxy between a driver and its server that breaks a connection at an exact moment: when a marker has
// passed on its way to the server. The marker is a key that nothing else uses. Other traffic, such as the handshake of
// new connections, passes unchanged.
type relay struct {
	addr     string
	upstream string

	mu       sync.Mutex
	listener net.Listener // nil while down
	conns    map[net.Conn]bool
	marker   []byte        // nil: do nothing
	cut      bool          // close the connection instead of replying, once; if false, hold replies back
	late     chan struct{} // closed when these replies are delivered after all; nil if they are swallowed
	marked   bool          // the marker has passed
	wg       sync.WaitGroup
}

// newRelay reserves an address. Nobody listens there until up is called.
func newRelay(t testing.TB, upstream string) *relay {
	t.Helper()
	r := &relay{upstream: upstream, conns: map[net.Conn]bool{}}
	r.addr = freeAddr()
	t.Cleanup(func() {
		r.down()
		r.wg.Wait()
	})
	return r
}

// The ports of relays are counted from a random one, which differs between processes.
var (
	firstPort = mathrand.Uint32N(relayPorts)
	usedPorts atomic.Uint32
)

const relayPorts = 20000

// freeAddr returns an address at which nobody listens, and which no other relay of this process has: the driver of a
// relay that is down would reach the server through another relay with the same address. The port is below the range of
// ports that the kernel assigns by itself, so another process is unlikely to take it while the relay is down.
func freeAddr() string {
	for {
		port := 10000 + (firstPort+usedPorts.Add(1))%relayPorts
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
		if l, err := net.Listen("tcp", addr); err == nil {
			_ = l.Close()
			return addr
		}
	}
}

// up starts to accept connections.
func (r *relay) up(t testing.TB) {
	t.Helper()
	var l net.Listener
	var err error
	for end := time.Now().Add(hangLimit); ; time.Sleep(10 * time.Millisecond) {
		if l, err = net.Listen("tcp", r.addr); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("conformance: relay: %v", err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listener = l
	r.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.serve(conn) })
		}
	})
}

// down closes every connection and refuses new ones.
func (r *relay) down() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listener != nil {
		_ = r.listener.Close()
		r.listener = nil
	}
	for conn := range r.conns {
		_ = conn.Close()
	}
}

// cutAfter breaks the connection on which marker has passed when the server replies. It happens once: a repeated
// command succeeds.
func (r *relay) cutAfter(marker string) { r.arm(marker, true, nil) }

// swallowAfter drops the server's replies on connections on which marker has passed.
func (r *relay) swallowAfter(marker string) { r.arm(marker, false, nil) }

// holdAfter holds back the server's replies on connections on which marker has passed, until deliver is called.
func (r *relay) holdAfter(t testing.TB, marker string) (deliver func()) {
	late := make(chan struct{})
	deliver = sync.OnceFunc(func() { close(late) })
	t.Cleanup(deliver)
	r.arm(marker, false, late)
	return deliver
}

func (r *relay) arm(marker string, cut bool, late chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.marker, r.cut, r.late, r.marked = []byte(marker), cut, late, false
}

// seen reports whether the marker has passed since the relay was armed.
func (r *relay) seen() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.marked
}

func (r *relay) serve(client net.Conn) {
	server, err := net.Dial("tcp", r.upstream)
	if err != nil {
		_ = client.Close()
		return
	}
	r.mu.Lock()
	if r.listener == nil {
		_, _ = client.Close(), server.Close()
	}
	r.conns[client], r.conns[server] = true, true
	r.mu.Unlock()

	link := &link{relay: r}
	r.wg.Go(func() {
		_, _ = io.Copy(server, watched{client, link})
		_, _ = client.Close(), server.Close()
	})
	_, _ = io.Copy(client, gated{server, link})
	_, _ = client.Close(), server.Close()

	r.mu.Lock()
	delete(r.conns, client)
	delete(r.conns, server)
	r.mu.Unlock()
}

// link is one connection through the relay.
type link struct {
	relay *relay
	tail  []byte // the last bytes that passed, in case the marker is split

	// guarded by relay.mu
	hit, cut bool
	late     chan struct{}
}

// watched is the client's side of a link. It finds the marker before the bytes are passed to the server.
type watched struct {
	io.Reader
	link *link
}

func (w watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	w.link.inspect(p[:n])
	return n, err
}

func (l *link) inspect(p []byte) {
	r := l.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.marker) == 0 {
		return
	}
	l.tail = append(l.tail, p...)
	if bytes.Contains(l.tail, r.marker) {
		l.tail = nil
		l.hit, l.cut, l.late, r.marked = true, r.cut, r.late, true
		if r.cut {
			r.marker = nil
		}
	} else if keep := len(r.marker) - 1; len(l.tail) > keep {
		l.tail = bytes.Clone(l.tail[len(l.tail)-keep:])
	}
}

// gated is the server's side of a link. Once the marker has passed, it ends, or delivers nothing more, or nothing yet.
type gated struct {
	io.Reader
	link *link
}

func (g gated) Read(p []byte) (int, error) {
	for {
		n, err := g.Reader.Read(p)
		g.link.relay.mu.Lock()
		hit, cut, late := g.link.hit, g.link.cut, g.link.late
		g.link.relay.mu.Unlock()
		switch {
		case err != nil || !hit:
			return n, err
		case cut:
			return 0, io.EOF
		case late != nil:
			<-late
			return n, nil
		}
	}
}

// muteServer accepts connections, reads everything and never answers.
func muteServer(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("conformance: mute server: %v", err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			wg.Go(func() { _, _ = io.Copy(io.Discard, conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}
