package pipeline

import (
	"errors"
	"strings"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
)

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
