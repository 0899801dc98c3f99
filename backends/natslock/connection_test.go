package natslock_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/natslock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
)

// deafServers are servers in this process that answer pings and reads, and store nothing, as a leader does that is cut
// off from the others.
type deafServers struct {
	bucket []byte // its settings, which make it fit for locks
	mu     sync.Mutex
	addrs  []string // to which connections were made
}

func newDeafServers(t *testing.T) *deafServers {
	t.Helper()
	bucket, err := json.Marshal(jetstream.StreamInfo{Config: natslock.StreamConfig(), Created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return &deafServers{bucket: bucket}
}

// Dial implements the interface CustomDialer of the NATS client.
func (d *deafServers) Dial(_, addr string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.addrs = append(d.addrs, addr)
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		d.serve(server)
	}()
	return client, nil
}

// serve reads lines. None of those within messages looks like a command.
func (d *deafServers) serve(conn net.Conn) {
	_, err := fmt.Fprint(conn, `INFO {"version":"2.15.2","proto":1,"headers":true,"max_payload":1048576}`+"\r\n")
	inbox := "" // the number of the subscription to all answers
	for lines := bufio.NewScanner(conn); err == nil && lines.Scan(); {
		answer := []byte(nil)
		words := strings.Fields(lines.Text() + " - -")
		switch {
		case words[0] == "PING":
			_, err = fmt.Fprint(conn, "PONG\r\n")
		case words[0] == "SUB":
			inbox = words[2]
		case strings.HasPrefix(words[1], "$JS.API.STREAM.INFO."):
			answer = d.bucket
		case strings.HasPrefix(words[1], "$JS.API.STREAM.MSG.GET."):
			answer = []byte(`{"error":{"code":404,"err_code":10037,"description":"no message found"}}`)
		}
		if answer != nil {
			_, err = fmt.Fprintf(conn, "MSG %s %s %d\r\n%s\r\n", words[2], inbox, len(answer), answer)
		}
	}
}

func (d *deafServers) dialed() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.addrs)
}

// A Client asks another server when a call has ended without an answer Deaf or more after the first one was sent, if
// nothing was stored meanwhile. So each server costs at most Deaf, one timeout, and the time between two calls, and the
// servers are asked in turn. Answers to reads prove nothing: a leader that is cut off gives them, too.
func TestNoServerIsWaitedForLongerThanTheSettingsSay(t *testing.T) {
	t.Parallel()
	servers, addrs := newDeafServers(t), []string{"127.0.0.1:1", "127.0.0.1:2"}
	settings := &natslock.Config{Addrs: addrs, Timeout: config.Duration(500 * time.Millisecond)}
	l, err := natslock.OpenOver(settings, servers)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	inspector, _ := locker.As[inspect.Inspector](l)
	for left := range addrs {
		first, read := time.Time{}, false
		for over := false; !over; {
			over = read && time.Since(first) >= natslock.Deaf
			if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrUnavailable) {
				t.Fatalf("a lock of a server that stores nothing: %v", err)
			}
			if first.IsZero() {
				first = time.Now() // the first request was sent before
			}
			if !over {
				_, err := inspector.Inspect(t.Context(), "k")
				read = read || err == nil
			}
		}
		for end := time.Now().Add(time.Minute); len(servers.dialed()) < left+2; <-time.After(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("a server that has stored nothing for %v is not left: %v", natslock.Deaf, servers.dialed())
			}
		}
	}
	if asked := servers.dialed(); asked[0] == asked[1] || asked[0] != asked[2] {
		t.Errorf("the servers are not asked in turn: %v", asked)
	}
}

// One request without an answer is no reason to leave a server that has stored something meanwhile: that would
// interrupt the requests of all others.
func TestAServerThatStoresIsNotLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := 0
		r := natslock.NewReach(func() { left++ })
		want := func(n int) {
			t.Helper()
			if left != n {
				t.Fatalf("servers were left %d times, want %d", left, n)
			}
		}
		lost := time.Now()
		<-time.After(2 * natslock.Deaf)
		r.Stored()
		stored := time.Now()
		r.Miss(lost)
		<-time.After(natslock.Deaf - 1)
		r.Miss(stored)
		want(0)
		<-time.After(1)
		r.Miss(time.Now())
		want(1)
		r.Miss(lost) // through the server that was left
		want(1)
		<-time.After(natslock.Deaf)
		r.Miss(lost)
		want(2)
	})
}
