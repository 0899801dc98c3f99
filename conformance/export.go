package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/core/passing"
)

// exportProperties are those of a [backend.Exporter].
var exportProperties = []property[Harness]{
	{
		"ExportEndsTheOwner",
		"After Export, no request of the owner value from before extends, releases or verifies the lock.",
		"A renewal or a release that is late, or a Close, would touch the lock of whoever has resumed it.",
		exportEndsTheOwner,
	},
	{
		"ExportedLockEnds",
		"After Export, the lock stays taken for the TTL of that request, whatever it was before, and then ends.",
		"A text that is never used would block the lock for as long as its first holder wanted it, or would end before it " +
			"can be used.",
		exportedLockEnds,
	},
	{
		"ExportTwiceIsOne",
		"A request to export that is executed again succeeds, leaves the TTL that the first has set, and does nothing once " +
			"the lock was resumed.",
		"A copy of the request that is late would keep a lock taken that nobody has, or take it from whoever has resumed it.",
		exportTwiceIsOne,
	},
	{
		"ExportInDoubtIsReleased",
		"After Export, a release with the new owner value frees the lock, and the request is refused when it comes again.",
		"Nobody could free the lock of an Export that was not answered, for as long as its text was to last.",
		exportInDoubtIsReleased,
	},
	{
		"ResumeHasANewToken",
		"Resume issues a fencing token greater than that of the lock before, and later grants have greater ones still.",
		"The resource could not tell a late write of the process that has exported the lock from one of the new holder.",
		resumeHasANewToken,
	},
	{
		"ResumeOnlyOnce",
		"Of all that resume a lock with one owner value, one is granted it, also if the others come after its release.",
		"A text that is copied, or a step of a pipeline that is run twice, would make two holders.",
		resumeOnlyOnce,
	},
	{
		"ResumeTwiceIsGrantedOnce",
		"A request to resume that is executed twice is granted twice, with one fencing token.",
		"Client libraries and proxies repeat requests that were not answered: the lock would be taken, and nobody would " +
			"know that it is theirs.",
		resumeTwiceIsGrantedOnce,
	},
	{
		"ResumeNeverAcquires",
		"Resume is refused with ErrNotHeld if the lock has ended, was released or belongs to somebody else, also while it " +
			"is free.",
		"Somebody else may have had the lock meanwhile, and changed what the work relies on.",
		resumeNeverAcquires,
	},
	{
		"ResumeInDoubtIsUndone",
		"A request to resume that was not answered, and has failed, leaves nothing: the lock becomes free, or can be " +
			"resumed if the request was never sent.",
		"The lock would stay taken for its whole TTL, by nobody.",
		resumeInDoubtIsUndone,
	},
}

// exporters makes two Backends for a fresh store, or skips the property if they export no locks.
func exporters(t testing.TB, h Harness) ([]backend.Exporter, []backend.Backend, Store) {
	t.Helper()
	bs, s := backends(t, h, 2)
	need(t, backend.Of(bs[0]).Export, "Export")
	es := make([]backend.Exporter, len(bs))
	for i, b := range bs {
		es[i], _ = b.(backend.Exporter)
	}
	return es, bs, s
}

// export exports the lock of o for ttl, and returns the owner value of the text.
func (o *holding) export(t testing.TB, e backend.Exporter, ttl time.Duration) (to string) {
	t.Helper()
	req := o.req
	req.TTL, to = ttl, passing.NewOwner()
	if err := within(t, "Export", hangLimit, func() error { return e.Export(t.Context(), req, to) }); err != nil {
		t.Fatalf("Export of a held lock: expected no error, seen %v", err)
	}
	return to
}

// resume makes one attempt to resume the lock of key, for an attempt with that token.
func resume(t testing.TB, e backend.Exporter, key, from, token string) (o *holding, err error) {
	t.Helper()
	req, sent := request(key, longTTL), time.Now()
	req.Token = token
	err = within(t, "Resume", hangLimit, func() error {
		g, err := e.Resume(t.Context(), req, from)
		if err == nil {
			b, _ := e.(backend.Backend)
			o = held(b, req, sent, g)
		}
		return err
	})
	return o, err
}

// mustResume is resume by a new attempt, which has to be granted the lock.
func mustResume(t testing.TB, e backend.Exporter, key, from string) *holding {
	t.Helper()
	o, err := resume(t, e, key, from, backend.NewToken())
	if err != nil {
		t.Fatalf("Resume of an exported lock: expected a grant, seen %v", err)
	}
	return o
}

// wantNotResumed checks that nobody can resume the lock of key.
func wantNotResumed(t testing.TB, what string, e backend.Exporter, key, from string) {
	t.Helper()
	o, err := resume(t, e, key, from, backend.NewToken())
	wantKind(t, "Resume "+what, err, locker.ErrNotHeld)
	if err == nil {
		_ = o.release(t.Context())
	}
}

func exportEndsTheOwner(t testing.TB, h Harness) {
	es, bs, _ := exporters(t, h)
	for _, when := range []string{"exported", "resumed"} {
		o := grab(t, bs[0], "k", longTTL)
		from := o.export(t, es[0], longTTL)
		var next *holding
		if when == "resumed" {
			next = mustResume(t, es[1], "k", from)
		}
		wantKind(t, "Extend by the owner from before, of a lock that was "+when, o.extend(t.Context(), longTTL),
			locker.ErrNotHeld)
		if v, ok := bs[0].(backend.Verifier); ok {
			wantKind(t, "Verify by the owner from before, of a lock that was "+when, v.Verify(t.Context(), o.req),
				locker.ErrNotHeld)
		}
		wantKind(t, "Release by the owner from before, of a lock that was "+when, o.release(t.Context()),
			locker.ErrNotHeld)
		_, err := acquire(t.Context(), bs[1], "k", longTTL)
		wantKind(t, "Acquire of a lock that was "+when, err, locker.ErrHeld)
		if next == nil {
			next = mustResume(t, es[1], "k", from)
		}
		if err := next.extend(t.Context(), longTTL); err != nil {
			t.Errorf("Extend by who has resumed the lock: expected no error, seen %v", err)
		}
		next.must(t)
	}
}

func exportedLockEnds(t testing.TB, h Harness) {
	es, bs, _ := exporters(t, h)
	for what, ttls := range map[string][2]time.Duration{
		"longer": {h.short(), 2 * h.short()}, "shorter": {longTTL, h.short()},
	} {
		o := grab(t, bs[0], what, ttls[0])
		asked := time.Now()
		from := o.export(t, es[0], ttls[1])
		told := time.Now()
		next, at := grabWhenFree(t, bs[1], what, longTTL, ttls[1]+h.late()+hangLimit)
		if first := asked.Add(ttls[1] - h.drift(ttls[1])); at.Before(first) {
			t.Errorf("a lock that was exported with a %s TTL: expected it to be taken for %v, seen it free after %v", what,
				ttls[1], at.Sub(asked))
		}
		if last := told.Add(ttls[1] + h.late()); at.After(last) && backend.Of(bs[1]).CountsTime {
			t.Errorf("a lock that was exported with a %s TTL: expected it to be free after %v, seen it free %v later", what,
				ttls[1], at.Sub(last))
		}
		wantNotResumed(t, "of a lock that somebody else has got", es[0], what, from)
		next.must(t)
	}
}

func exportTwiceIsOne(t testing.TB, h Harness) {
	es, bs, _ := exporters(t, h)
	o, asked := grab(t, bs[0], "k", h.short()), time.Now()
	to, req := o.export(t, es[0], h.short()), o.req
	req.TTL = longTTL
	if err := es[1].Export(t.Context(), req, to); err != nil {
		t.Errorf("Export that is executed again: expected no error, seen %v", err)
	}
	next, at := grabWhenFree(t, bs[1], "k", longTTL, h.short()+h.late()+hangLimit)
	if last := asked.Add(h.short() + h.late()); at.After(last) && backend.Of(bs[1]).CountsTime {
		t.Errorf("Export that is executed again with a longer TTL: expected the lock to be free after that of the first, "+
			"seen it free %v later", at.Sub(last))
	}
	next.must(t)

	o = grab(t, bs[0], "k", longTTL)
	to = o.export(t, es[0], longTTL)
	next = mustResume(t, es[1], "k", to)
	wantKind(t, "Export that is executed again, of a lock that was resumed", es[0].Export(t.Context(), o.req, to),
		locker.ErrNotHeld)
	if err := next.extend(t.Context(), longTTL); err != nil {
		t.Errorf("Extend by who has resumed the lock: expected no error, seen %v", err)
	}
	next.must(t)
}

func exportInDoubtIsReleased(t testing.TB, h Harness) {
	es, bs, _ := exporters(t, h)
	o := grab(t, bs[0], "k", longTTL)
	to := o.export(t, es[0], longTTL)
	wantKind(t, "Release by the owner from before", o.release(t.Context()), locker.ErrNotHeld)
	req := o.req
	req.Token = to
	if err := within(t, "Release", hangLimit, func() error { return bs[0].Release(t.Context(), req) }); err != nil {
		t.Errorf("Release by the owner value of an export: expected no error, seen %v", err)
	}
	next := grab(t, bs[1], "k", longTTL)
	wantKind(t, "Export that comes after its release", es[0].Export(t.Context(), o.req, to), locker.ErrNotHeld)
	wantNotResumed(t, "of a lock that was released", es[1], "k", to)
	next.must(t)
}

func resumeHasANewToken(t testing.TB, h Harness) {
	es, bs, _ := exporters(t, h)
	need(t, backend.Of(bs[0]).Tokens, "Tokens")
	req := request("k", longTTL)
	req.Fences = 8 // all tokens of a grant are smaller
	o, g := ask(t, bs[0], req)
	last := g.Fence + uint64(max(1, g.Fences)) - 1
	for n := range 3 {
		next := mustResume(t, es[1], "k", o.export(t, es[n%2], longTTL))
		if next.req.Fence <= last {
			t.Errorf("Resume: expected a token greater than %d, seen %d", last, next.req.Fence)
		}
		if v, ok := bs[0].(backend.Verifier); ok {
			if err := v.Verify(t.Context(), next.req); err != nil {
				t.Errorf("Verify of a lock that was resumed: expected no error, seen %v", err)
			}
		}
		o, last = next, next.req.Fence
	}
	o.must(t)
	after := grab(t, bs[0], "k", longTTL)
	if after.req.Fence <= last {
		t.Errorf("Acquire of a lock that had been resumed: expected a token greater than %d, seen %d", last, after.req.Fence)
	}
	after.must(t)
}

func resumeOnlyOnce(t testing.TB, h Harness) {
	es, bs, _ := exporters(t, h)
	from := grab(t, bs[0], "k", longTTL).export(t, es[0], longTTL)
	type result struct {
		o   *holding
		err error
	}
	results := make(chan result, 8)
	for i := range cap(results) {
		go func() {
			req, sent := request("k", longTTL), time.Now()
			g, err := es[i%2].Resume(t.Context(), req, from)
			results <- result{held(bs[i%2], req, sent, g), err}
		}()
	}
	var o *holding
	for range cap(results) {
		switch r := <-results; {
		case r.err == nil && o == nil:
			o = r.o
		case r.err == nil:
			t.Error("Resume by several at once: expected one grant, seen another")
		default:
			wantKind(t, "Resume by several at once", r.err, locker.ErrNotHeld)
		}
	}
	if o == nil {
		t.Fatal("Resume by several at once: expected one grant, seen none")
	}
	wantNotResumed(t, "of a lock that was resumed", es[1], "k", from)
	o.must(t)
	wantNotResumed(t, "of a lock that was resumed and released", es[1], "k", from)
}

func resumeTwiceIsGrantedOnce(t testing.TB, h Harness) {
	es, bs, _ := exporters(t, h)
	from, token := grab(t, bs[0], "k", longTTL).export(t, es[0], longTTL), backend.NewToken()
	first, err := resume(t, es[1], "k", from, token)
	if err != nil {
		t.Fatalf("Resume of an exported lock: expected a grant, seen %v", err)
	}
	again, err := resume(t, es[1], "k", from, token)
	switch {
	case err != nil:
		t.Errorf("Resume that is executed twice: expected a second grant, seen %v", err)
	case again.req.Fence != first.req.Fence:
		t.Errorf("Resume that is executed twice: expected the token %d again, seen %d", first.req.Fence, again.req.Fence)
	}
	first.must(t)
	grab(t, bs[0], "k", longTTL).must(t)
}

func resumeNeverAcquires(t testing.TB, h Harness) {
	es, bs, _ := exporters(t, h)
	wantNotResumed(t, "of a lock that nobody has exported", es[0], "never", backend.NewToken())
	o := grab(t, bs[0], "k", longTTL)
	wantNotResumed(t, "of a lock that somebody has", es[1], "k", backend.NewToken())
	o.must(t)
	from := grab(t, bs[0], "k", h.short()).export(t, es[0], h.short())
	time.Sleep(h.short() + h.late())
	knows := es[1]
	if !backend.Of(bs[1]).CountsTime {
		knows = es[0] // the other one sees the lock for the first time
	}
	wantNotResumed(t, "of a lock that has ended", knows, "k", from)
	o, _ = grabWhenFree(t, bs[0], "k", longTTL, h.short()+hangLimit)
	o.must(t)
	wantNotResumed(t, "of a free lock", es[1], "k", from)
}

func resumeInDoubtIsUndone(t testing.TB, h Harness) {
	es, bs, s := exporters(t, h)
	if s.LoseReply == nil && s.Hang == nil {
		t.Skip("the harness has no LoseReply and no Hang")
	}
	settled(t, bs[0], "k") // so that connections and scripts exist
	settled(t, bs[1], "k")
	check := func(what string, fault func() func()) {
		t.Helper()
		from := grab(t, bs[0], "k", longTTL).export(t, es[0], longTTL)
		ctx, cancel := context.WithTimeout(t.Context(), slack)
		mend := fault()
		req, sent := request("k", longTTL), time.Now()
		g, err := es[1].Resume(ctx, req, from)
		cancel()
		mend()
		if err == nil {
			held(bs[1], req, sent, g).must(t)
			return
		}
		if !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("Resume whose %s: expected a grant or an error that matches %q, seen %v", what, locker.ErrUnavailable,
				err)
		}
		o, err := acquireWithin(t, bs[0], "k", recovery)
		if err != nil { // maybe the request was never sent, and nothing was undone
			o, err = resume(t, es[0], "k", from, backend.NewToken())
		}
		if err != nil {
			t.Fatalf("after a request to resume whose %s: expected the lock to be free or to be resumed, seen %v", what, err)
		}
		o.must(t)
	}
	if s.LoseReply != nil {
		check("reply is lost", func() func() { s.LoseReply(); return func() {} })
	}
	if s.Hang != nil {
		check("store hangs", s.Hang)
	}
}
