package redlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
)

// checkTimeout bounds asking the nodes who they are.
const checkTimeout = time.Second

// roster makes sure that every node is a server of its own. A server that is given twice, under two addresses, say,
// would vote twice, and a majority would not be one.
type roster struct {
	drivers []drivers.Driver
	names   []string
	logger  *slog.Logger

	mu        sync.Mutex
	runIDs    map[string]int // of the nodes that have answered
	unchecked nodeSet
	doubles   map[int]error // nodes that do not vote, and why
	checking  bool
	closed    bool
	done      sync.WaitGroup // background checks
}

func newRoster(ds []drivers.Driver, names []string, logger *slog.Logger) *roster {
	return &roster{
		drivers: ds, names: names, logger: logger,
		runIDs: map[string]int{}, unchecked: allOf(len(ds)), doubles: map[int]error{},
	}
}

// identity is what a node says about itself.
type identity struct {
	runID    string
	replicas string // how many are connected
	err      error
}

// checkAll asks all nodes at once. It returns an error if two are the same.
func (r *roster) checkAll() error {
	ids := make([]identity, len(r.drivers))
	var wg sync.WaitGroup
	for i := range r.drivers {
		wg.Go(func() { ids[i] = r.ask(i) })
	}
	wg.Wait()
	var errs []error
	for i, id := range ids {
		if err := r.note(i, id); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// ask asks node i who it is.
func (r *roster) ask(i int) identity {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	replies, err := drivers.Await(ctx, func() ([]drivers.Reply, error) {
		return r.drivers[i].Do(ctx, drivers.Command{"INFO", "server"}, drivers.Command{"INFO", "replication"})
	})
	if err == nil && len(replies) != 2 {
		err = fmt.Errorf("%d replies to 2 commands", len(replies))
	}
	if err != nil {
		return identity{err: err}
	}
	id := identity{runID: field(replies[0], "run_id"), replicas: field(replies[1], "connected_slaves")}
	if refusal, ok := replies[0].(drivers.ServerError); ok {
		id.err = refusal
	}
	return id
}

// field reads one line of a reply to INFO.
func field(reply drivers.Reply, name string) string {
	text, _ := reply.(string)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return value
		}
	}
	return ""
}

// note records what node i said. It returns an error if it is a node that is known already.
func (r *roster) note(i int, id identity) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var refusal drivers.ServerError
	switch {
	case errors.As(id.err, &refusal) && (refusal.Code() == "LOADING" || refusal.Code() == "NOAUTH" || refusal.Code() == "WRONGPASS"):
		return nil // not in service; its votes will say so
	case id.err != nil && refusal == "":
		return nil // not reached: asked again when it answers
	case id.runID == "":
		r.unchecked &^= only(i)
		r.logger.Warn("redlock: a node does not say who it is, so it cannot be made sure that it was not given twice; grant the user +info",
			"node", r.names[i], "answer", fmt.Sprint(id.err))
		return nil
	}
	r.unchecked &^= only(i)
	if first, known := r.runIDs[id.runID]; known && first != i {
		err := fmt.Errorf("%s and %s are the same server (run_id %s)", r.names[first], r.names[i], id.runID)
		r.doubles[i] = err
		return err
	}
	r.runIDs[id.runID] = i
	if id.replicas != "" && id.replicas != "0" {
		r.logger.Warn("redlock: a node has replicas; if one takes over without the latest writes, a lock may be granted twice",
			"node", r.names[i], "replicas", id.replicas)
	}
	return nil
}

// double returns why node i does not vote, or nil.
func (r *roster) double(i int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.doubles) == 0 {
		return nil
	}
	return r.doubles[i]
}

// answered is told that node i has answered; if it has not said yet who it is, it is asked in the background, one node
// at a time.
func (r *roster) answered(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.unchecked.has(i) || r.checking || r.closed {
		return
	}
	r.checking = true
	r.done.Go(func() {
		if err := r.note(i, r.ask(i)); err != nil {
			r.logger.Error("redlock: a server was given twice; it votes once", "error", err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.checking = false
	})
}

// close waits until no check is under way, and none begins any more: answers that come after their round was settled go on
// to come until the nodes are closed.
func (r *roster) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.done.Wait()
}
