package requests

import (
	"context"
	"net/http"
	"strconv"
	"syscall"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/golocker/locker/internal/testing/adapters"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
)

// server is that of a store. It keeps its locks when it is killed.
type server struct {
	url           string
	kill, restart func()
}

var stores = map[string]func(t *testing.T) server{
	"Redis": func(t *testing.T) server {
		s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
		return server{"redis+goredis://" + s.Addr(), s.Kill, s.Restart}
	},
	"PostgreSQL": func(t *testing.T) server {
		s := pgtest.Start(t)
		adapters.Migrate(t, s.URL("postgres"))
		return server{s.URL("postgres"), s.Kill, s.Restart}
	},
}

// answer is what a client makes of a response.
type answer string

const (
	done        answer = "done"
	held        answer = "held"        // the handler was not called, and another one has the lock
	unavailable answer = "unavailable" // the handler was not called
	lost        answer = "lost"        // the lock was lost
	broken      answer = "broken"      // there was no response
)

// clients make a request by HTTP or gRPC. With wait, it waits for the lock.
var clients = map[string]func(t *testing.T, addr string, wait bool, what string) answer{
	"HTTP": func(t *testing.T, addr string, wait bool, what string) answer {
		path := "/now/"
		if wait {
			path = "/wait/"
		}
		req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPost,
			"http://"+addr+path+what, nil)
		if err != nil {
			t.Error(err)
			return broken
		}
		one := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := one.Do(req)
		if err != nil {
			return broken
		}
		defer resp.Body.Close()
		_, err = strconv.Atoi(resp.Header.Get("Retry-After"))
		again := err == nil
		switch {
		case resp.StatusCode == http.StatusOK && !again:
			return done
		case resp.StatusCode == http.StatusConflict && again:
			return held
		case resp.StatusCode == http.StatusServiceUnavailable && again:
			return unavailable
		case resp.StatusCode == http.StatusInternalServerError && !again:
			return lost
		}
		return answer(resp.Status)
	},
	"gRPC": func(t *testing.T, addr string, wait bool, what string) answer {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Error(err)
			return broken
		}
		defer conn.Close()
		client := pb.NewTestServiceClient(conn)
		call := client.UnaryCall
		if wait {
			call = client.CacheableUnaryCall
		}
		_, err = call(context.WithoutCancel(t.Context()), &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte(what)}})
		again := false
		for _, detail := range status.Convert(err).Details() {
			_, ok := detail.(*errdetails.RetryInfo)
			again = again || ok
		}
		switch code := status.Code(err); {
		case code == codes.OK:
			return done
		case code == codes.Aborted && again:
			return held
		case code == codes.Unavailable && again:
			return unavailable
		case code == codes.Aborted:
			return lost
		case code == codes.Unavailable: // says the client itself
			return broken
		}
		return answer(err.Error())
	},
}

// Two instances of a program handle requests for the same key.
func TestRequests(t *testing.T) {
	for store, start := range stores {
		for kind, client := range clients {
			t.Run(store+", "+kind, func(t *testing.T) {
				t.Parallel()
				f := &fleet{T: t, kind: kind, client: client, server: start(t)}
				f.exclusion()
				f.killed()
				f.stopped()
				f.serverIsDown()
			})
		}
	}
}

type fleet struct {
	*testing.T
	server
	kind   string
	client func(t *testing.T, addr string, wait bool, what string) answer
	last   uint64 // the last token
}

// backend is an instance, and its address.
type backend struct {
	*fleet
	*instance.Process
	addr string
}

func (f *fleet) start() *backend {
	p := instance.Start(f.T, f.kind, f.url)
	return &backend{f, p, p.Says("serves at ")}
}

// send makes a request, whose answer comes later.
func (b *backend) send(wait bool, what string) <-chan answer {
	answers := make(chan answer, 1)
	go func() { answers <- b.client(b.fleet.T, b.addr, wait, what) }()
	return answers
}

// runs waits until a handler has the lock, with a token that is greater than those before.
func (b *backend) runs() {
	b.fleet.Helper()
	token, err := strconv.ParseUint(b.Says("runs "), 10, 64)
	if err != nil || token <= b.last {
		b.fleet.Errorf("token %d after %d, %v", token, b.last, err)
	}
	b.last = token
}

// gets fails the test unless an answer is as it should be.
func (f *fleet) gets(got <-chan answer, want answer, when string) {
	f.Helper()
	if a := <-got; a != want {
		f.Errorf("%s: %s, want %s", when, a, want)
	}
}

// exclusion: while one instance handles a request, another one refuses those for the same key, or lets them wait.
func (f *fleet) exclusion() {
	a, b := f.start(), f.start()
	first := a.send(false, step)
	a.runs()
	f.gets(b.send(false, quick), held, "while the other handles a request")
	second := b.send(true, step)
	a.GoOn()
	f.gets(first, done, "the first request")
	b.runs()
	b.GoOn()
	f.gets(second, done, "the request that has waited")
	f.gets(a.send(false, quick), done, "when the lock is free")
}

// killed: after kill -9 of the holder, a request of another instance gets the lock when the TTL is over.
func (f *fleet) killed() {
	a, b := f.start(), f.start()
	first := a.send(false, step)
	a.runs()
	a.Kill()
	f.gets(first, broken, "the process was killed")
	second := b.send(true, step)
	b.runs()
	b.GoOn()
	f.gets(second, done, "after the TTL")
}

// stopped shows what is not promised: an instance that stands still in its handler overlaps with the next holder. The
// next holder has a greater token, and the request of the first one is not answered with success.
func (f *fleet) stopped() {
	a, b := f.start(), f.start()
	first := a.send(false, step)
	a.runs()
	a.Signal(syscall.SIGSTOP)
	second := b.send(true, step)
	b.runs() // and a has not returned
	a.Signal(syscall.SIGCONT)
	a.GoOn()
	f.gets(first, lost, "the process that stood still")
	b.GoOn()
	f.gets(second, done, "the next holder")
}

// serverIsDown: a handler loses its lock when the store is away for longer than the TTL. Other requests are told that
// it is not available, and are handled when it is back.
func (f *fleet) serverIsDown() {
	a, b := f.start(), f.start()
	first := a.send(false, hold)
	a.runs()
	f.kill()
	f.gets(b.send(false, quick), unavailable, "without a store")
	a.Says("stops")
	f.gets(first, lost, "the store was away for longer than the TTL")
	f.restart()
	for _, p := range []*backend{a, b} {
		for {
			got := <-p.send(true, quick)
			if got == done {
				break
			}
			if got != unavailable { // the client of the store has not noticed yet that it is back
				f.Fatalf("the store is back: %s", got)
			}
		}
	}
}
