package faults

import (
	"bufio"
	"fmt"
	"net"
	"sync"

	"github.com/golocker/locker/internal/testing/trials/history"
)

// resource is what the locks protect: for each key two registers, one that checks tokens and one that does not. Clients
// in other processes reach it by TCP, on a network that has no faults.
type resource struct {
	mu     sync.Mutex
	byKey  map[string]*[2]history.Register
	visits map[int]int // number of writes by client
}

// access is one visit. If Values is nil, it reads. Otherwise it writes the values that were read, plus one.
type access struct {
	Client int
	Key    string
	Fence  uint64
	Values []int
}

func newResource() *resource {
	return &resource{byKey: map[string]*[2]history.Register{}, visits: map[int]int{}}
}

// visit reads or writes both registers and returns their values.
func (r *resource) visit(a access) []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	twins := r.byKey[a.Key]
	if twins == nil {
		twins = &[2]history.Register{{Fenced: true}, {}}
		r.byKey[a.Key] = twins
	}
	values := make([]int, len(twins))
	for i := range twins {
		if a.Values == nil {
			values[i], _ = twins[i].Read(a.Fence)
		} else {
			twins[i].Write(a.Fence, a.Values[i])
		}
	}
	if a.Values != nil {
		r.visits[a.Client]++
	}
	return values
}

// served returns the number of writes of a client.
func (r *resource) served(client int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.visits[client]
}

// lost returns the numbers of updates that were lost and refused, of the registers that check tokens (0) and of the
// others (1).
func (r *resource) lost() (lost, refused [2]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, twins := range r.byKey {
		for i := range twins {
			lost[i] += twins[i].Lost
			refused[i] += twins[i].Refused
		}
	}
	return lost, refused
}

// serve answers a client in another process until the connection ends.
func (r *resource) serve(conn net.Conn) {
	in := bufio.NewReader(conn)
	for {
		var a access
		var write bool
		v := [2]int{}
		if _, err := fmt.Fscanln(in, &a.Client, &a.Key, &a.Fence, &write, &v[0], &v[1]); err != nil {
			return
		}
		if write {
			a.Values = v[:]
		}
		values := r.visit(a)
		if _, err := fmt.Fprintln(conn, values[0], values[1]); err != nil {
			return
		}
	}
}

// remote is the resource for a player in another process.
type remote struct {
	mu   sync.Mutex
	conn net.Conn
	in   *bufio.Reader
}

func dialResource(addr string) (*remote, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &remote{conn: conn, in: bufio.NewReader(conn)}, nil
}

func (r *remote) visit(a access) []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := make([]int, 2)
	copy(v, a.Values)
	_, _ = fmt.Fprintln(r.conn, a.Client, a.Key, a.Fence, a.Values != nil, v[0], v[1])
	_, _ = fmt.Fscanln(r.in, &v[0], &v[1])
	return v
}
