package pipeline

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// exchange sends a batch within limit and resolves its calls. A call may take several exchanges with the driver: its
// usual case, joined with those of others, its own words if the case is not the usual one, and each of these once more
// with the text of a script that the server does not know. Each begins only when it is known that the server has not
// executed the one before. So the outcome of the last one is that of the call, also if it is not sent any more.
func (p *Pipeline) exchange(batch []*Call, limit time.Duration) {
	ctx, cancel := p.bounded(limit)
	defer cancel()
	until := p.replicasUntil(limit)
	for requests := p.requests(batch); len(requests) > 0; {
		words := make([]drivers.Command, len(requests), len(requests)+1)
		for i := range requests {
			words[i] = requests[i].Words
		}
		words = p.confirming(words, until)
		var replies []drivers.Reply
		err := errClosedUnsent
		if p.ctx.Err() == nil { // otherwise Close has begun before this goroutine came to run
			replies, err = p.driver.Do(ctx, words...)
			p.noteDial(ctx, err)
		}
		if err == nil && len(replies) != len(words) {
			err = fmt.Errorf("the driver returned %d replies to %d commands", len(replies), len(words))
		}
		if err != nil {
			replies = make([]drivers.Reply, len(words))
		}
		p.confirmed(requests, replies)
		var again []request
		for i := range requests {
			again = p.answered(&requests[i], replies[i], err, again)
		}
		requests = again
	}
	if len(batch) > 1 {
		// The goroutines that have waited for the batch run before the next one is taken, so that their next commands
		// are in it. Otherwise each of them would find a sender free, and send a batch of one.
		runtime.Gosched()
	}
}

// noteDial begins or ends a backoff after an exchange in ctx that returned err.
func (p *Pipeline) noteDial(ctx context.Context, err error) {
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return // a dial that was interrupted says nothing about the node
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialBackoff.after(err)
}

// punctual reports whether the driver keeps to deadlines without a Done channel at the moment.
func (p *Pipeline) punctual() bool { return p.direct != nil && p.direct.Direct() }

// bounded returns the context of an exchange that may take at most limit.
func (p *Pipeline) bounded(limit time.Duration) (context.Context, context.CancelFunc) {
	end := time.Now().Add(limit)
	if p.punctual() && !p.abandoned.Load() {
		return &deadline{p.ctx, end}, func() {}
	}
	return context.WithDeadline(p.ctx, end)
}

// deadline is the context of an exchange with a driver that keeps to deadlines without a Done channel. Only time ends
// it. Close does not end it, but Drain, which is called before Close, waits for as long as the exchange may take. An
// exchange that begins after Abandon gets a context that Close ends. See drivers.Direct.
type deadline struct {
	context.Context // for Value: the pipeline's context
	end             time.Time
}

func (d *deadline) Deadline() (time.Time, bool) { return d.end, true }
func (d *deadline) Done() <-chan struct{}       { return nil }

func (d *deadline) Err() error {
	if time.Now().Before(d.end) {
		return nil
	}
	return context.DeadlineExceeded
}

// request is one command to the server, and the calls that its reply is for: one call, or several calls whose usual
// cases are joined.
type request struct {
	script.Command
	calls  []*Call
	joined bool          // Command is the usual cases of calls
	native bool          // Command is a release without a script
	probe  script.Native // Command asks whether the server knows this, for no call
	slot   uint16        // of joined calls, if the pipeline keeps slots apart
}

// requests returns what to send for a batch. The usual cases come last, joined as far as possible.
func (p *Pipeline) requests(batch []*Call) []request {
	requests := make([]request, 0, 1)
	for i, c := range batch {
		if c.Usual == nil {
			requests = append(requests, request{Command: c.Command, calls: batch[i : i+1]})
		}
	}
	alone := len(requests)
	for _, releases := range [...]bool{false, true} { // in the order that script.Join demands
		for _, c := range batch {
			if c.Usual != nil && c.Usual.IsRelease() == releases {
				requests = p.gather(requests, alone, c)
			}
		}
	}
	var probes []request
	known := p.known()
	for i := range requests[alone:] {
		r := &requests[alone+i]
		if len(r.calls) > 1 || !r.natively(known.command) {
			r.join()
		}
		if !known.asked && probes == nil {
			probes = r.probes()
		}
	}
	return append(requests, probes...)
}

// gather adds c to one of the joined requests, which begin at index from, or to a new one.
func (p *Pipeline) gather(requests []request, from int, c *Call) []request {
	var slot uint16
	if p.slots.Load() {
		slot = c.Usual.Slot()
	}
	for i := from; i < len(requests); i++ {
		if r := &requests[i]; r.slot == slot && len(r.calls) < script.MaxJoined {
			r.calls = append(r.calls, c)
			return requests
		}
	}
	return append(requests, request{calls: []*Call{c}, slot: slot})
}

// join makes r one command for the usual cases of its calls.
func (r *request) join() {
	usual := make([]*script.Usual, len(r.calls))
	for i, c := range r.calls {
		usual[i] = c.Usual
	}
	r.Command, r.joined = script.Join(usual), true
}

// answered resolves the calls of r, whose outcome is reply or err. Of the calls that the server has not executed, and
// that are to be sent again in another form, it appends the requests to again.
func (p *Pipeline) answered(r *request, reply drivers.Reply, err error, again []request) []request {
	refusal, refused := reply.(drivers.ServerError)
	switch {
	case r.probe != script.NoNative:
		p.probed(r.probe, reply, err)
		return again
	case r.native:
		return p.answeredNatively(r, reply, err, again)
	case refused && refusal.Code() == "NOSCRIPT" && r.Source != "":
		// The server does not know the script. A NOSCRIPT in reply to a command that calls no script comes from
		// something between the client and the server. Such a command is not sent again.
		return append(again, r.inFull())
	case !r.joined:
		if refused && refusal.Code() == "WRONGTYPE" {
			reply = r.naming(refusal)
		}
		p.resolve(r.calls[0], reply, err)
		return again
	case refused && p.becauseJoined(refusal):
		for i := range r.calls {
			again = p.alone(r, i, again)
		}
		return again
	case refused || err != nil:
		for _, c := range r.calls {
			p.resolve(c, reply, err)
		}
		return again
	}
	numbers, err := script.ReadJoined(reply, len(r.calls))
	for i, c := range r.calls {
		switch {
		case err != nil:
			p.resolve(c, nil, err)
		case numbers[i] == 0:
			again = p.unusual(r, i, again)
		default:
			p.resolve(c, numbers[i], nil)
		}
	}
	return again
}

// ErrWithdrawn is the error of an acquisition that the server has answered without executing it, and that was not sent
// again because its caller had left.
var ErrWithdrawn = drivers.NotSent(errors.New("the caller has left"))

// unusual appends to again the request of a call whose case the server has found not to be the usual one.
func (p *Pipeline) unusual(r *request, i int, again []request) []request {
	if c := r.calls[i]; p.Unusual != nil && !c.Quiet {
		p.Unusual(c.Usual.Lock)
	}
	return p.alone(r, i, again)
}

// alone appends to again a request with the words of a call's own command, because the server has not executed r for
// it. An acquisition whose caller has left is not sent again.
func (p *Pipeline) alone(r *request, i int, again []request) []request {
	c := r.calls[i]
	p.mu.Lock()
	drop := c.withdrawn && !c.Usual.IsRelease()
	p.mu.Unlock()
	if drop {
		p.resolve(c, nil, ErrWithdrawn)
		return again
	}
	return append(again, request{Command: c.Usual.Alone(), calls: r.calls[i : i+1]})
}

// inFull returns r with the script's text in place of its digest, which also teaches it to the server.
func (r *request) inFull() request {
	full := *r
	full.Words = slices.Clone(r.Words)
	full.Words[0], full.Words[1], full.Source = "EVAL", r.Source, ""
	return full
}

// becauseJoined reports whether the server may have refused a joined request only because it was joined. Then each call
// is sent by itself, and gets an answer of its own.
func (p *Pipeline) becauseJoined(e drivers.ServerError) bool {
	if e.Code() == "CROSSSLOT" { // this is one server of a cluster, and the driver does not say so
		p.slots.Store(true)
	}
	return script.IsForMany(e)
}

// naming adds the keys of r to a refusal because of the type of a value, as the server does not say which key that is.
// The name of the lock is left out, because the caller knows it, and because it may be one that must not be logged.
// A script for several locks has more than five keys, and leaves it to others to say what is wrong.
func (r *request) naming(refusal drivers.ServerError) drivers.ServerError {
	if len(r.Words) < 4 || !strings.HasPrefix(r.Words[0], "EVAL") {
		return refusal
	}
	n, _ := strconv.Atoi(r.Words[2])
	if n < 2 || n > 5 || len(r.Words) < 3+n {
		return refusal
	}
	lock, names := r.Words[3], ""
	for _, key := range r.Words[4 : 3+n] {
		names += " " + strings.ReplaceAll(key, lock, "…")
	}
	return drivers.ServerError(fmt.Sprintf("%s (the key … of the lock, or one of%s, has a value that is not of this "+
		"library: TYPE shows which; delete it, or choose another prefix)", refusal.Error(), names))
}

// native is what is known of the command with which the server releases a lock without a script. Nobody asks for the
// version of the server, which users may have no right to, and which says nothing about a proxy on the way. Instead,
// probes travel beside the first release that is alone. They cost no round trip.
type native struct {
	asked   bool
	command script.Native // what the server knows and allows
}

func (p *Pipeline) known() native {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.native
}

// natively makes r, whose call is alone, a native release. It returns false if that cannot be.
func (r *request) natively(command script.Native) bool {
	r.Command, r.native = command.Release(r.calls[0].Usual)
	return r.native
}

// probes returns what to send beside r, to find out which command the server knows, if r is alone and could be native.
func (r *request) probes() (probes []request) {
	for _, n := range [...]script.Native{script.DelEx, script.DelIfEq} {
		if _, could := n.Release(r.calls[0].Usual); could && len(r.calls) == 1 {
			probes = append(probes, request{Command: n.Probe(r.calls[0].Usual), probe: n})
		}
	}
	return probes
}

// probed notes how the server has answered a probe. If it has answered nothing, the command is not used: there are
// proxies that close the connection when they do not know a command.
func (p *Pipeline) probed(command script.Native, reply drivers.Reply, err error) {
	refusal, refused := reply.(drivers.ServerError)
	if errors.Is(err, drivers.ErrNotSent) || refused && script.IsRefusal(refusal) {
		return // this says nothing of the command
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.native.asked = true
	if _, executed := reply.(int64); executed || refused && isForeign(refusal) {
		p.native.command = command
	}
}

// answeredNatively is answered for a native release.
func (p *Pipeline) answeredNatively(r *request, reply drivers.Reply, err error, again []request) []request {
	refusal, refused := reply.(drivers.ServerError)
	switch {
	case refused && strings.HasPrefix(refusal.Error(), "ERR unknown command"):
		return append(again, p.relearn(r, native{})...) // this is another server
	case refused && refusal.Code() == "NOPERM":
		return append(again, p.relearn(r, native{asked: true})...)
	case refused && isForeign(refusal), reply == int64(0):
		return p.unusual(r, 0, again)
	}
	p.resolve(r.calls[0], reply, err)
	return again
}

// relearn notes that the server does not execute r, and returns what to send instead.
func (p *Pipeline) relearn(r *request, known native) []request {
	p.mu.Lock()
	p.native = known
	p.mu.Unlock()
	return p.requests(r.calls)
}

// isForeign reports whether the server has executed a native command and found a key that is no string.
func isForeign(e drivers.ServerError) bool {
	return e.Code() == "WRONGTYPE" || strings.HasPrefix(e.Error(), "ERR Key should be of string type")
}

// replicasUntil returns until when an exchange that begins now may wait for replicas. If there is little time for the
// exchange, the WAIT ends before, so that the connection is not given up with a WAIT that is unanswered.
func (p *Pipeline) replicasUntil(limit time.Duration) time.Time {
	return time.Now().Add(min(p.replicas.Timeout, limit*3/4))
}

// confirming returns words and a WAIT until a time, if replicas have to confirm something.
func (p *Pipeline) confirming(words []drivers.Command, until time.Time) []drivers.Command {
	if p.replicas.Want == 0 {
		return words
	}
	return append(words, script.Wait(p.replicas.Want, time.Until(until)))
}

// confirmed notes at the calls of requests what the last of the replies, that to WAIT, says of the replicas.
func (p *Pipeline) confirmed(requests []request, replies []drivers.Reply) {
	if p.replicas.Want == 0 {
		return
	}
	short := p.shortfall(replies[len(requests)])
	for i := range requests {
		for _, c := range requests[i].calls {
			c.short = short
		}
	}
}

// shortfall reads the reply to WAIT. It returns nil if enough replicas have confirmed.
func (p *Pipeline) shortfall(reply drivers.Reply) *Shortfall {
	s := &Shortfall{Want: p.replicas.Want}
	switch reply := reply.(type) {
	case int64:
		if s.Got = int(reply); s.Got >= s.Want {
			return nil
		}
	case drivers.ServerError:
		s.Err = fmt.Errorf("the server refuses WAIT: %w", reply)
	default:
		s.Err = fmt.Errorf("unexpected reply of type %T to WAIT", reply)
	}
	return s
}

// unconfirmed returns the error of a call that was answered with reply: its Shortfall if the reply grants something, or
// nil.
func (c *Call) unconfirmed(reply drivers.Reply) error {
	if c.short != nil && c.Grants != nil && c.Grants(reply) {
		return c.short
	}
	return nil
}
