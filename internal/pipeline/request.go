package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
)

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
