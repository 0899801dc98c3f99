package lockcertmagic_test

import (
	"strings"
	"testing"

	"github.com/golocker/locker/internal/testing/adapters"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/internal/testing/storeurl"
)

// onStores runs f with each store of locks.
func onStores(t *testing.T, f func(t *testing.T, url string, s storeurl.Server)) {
	for name, start := range adapters.Servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, s := start(t)
			f(t, url, s)
		})
	}
}

// startTwo starts two instances that share certificates. They have not begun to obtain one.
func startTwo(t *testing.T, url string) (first, second *instance.Process) {
	t.Helper()
	dir := t.TempDir()
	first, second = instance.Start(t, url, dir), instance.Start(t, url, dir)
	first.Says("ready")
	second.Says("ready")
	return first, second
}

// finish lets an instance go on until it has its certificate, and returns how many it has issued on the way.
func finish(p *instance.Process) (issued int) {
	p.Helper()
	p.GoOn()
	for {
		line, ok := p.Line()
		switch {
		case !ok || strings.HasPrefix(line, "error: "):
			p.Fatalf("the instance has ended without a certificate: %s", line)
		case line == "issues":
			issued++
			p.GoOn()
		case line == "done":
			return issued
		}
	}
}

func TestOneInstanceIssues(t *testing.T) {
	onStores(t, func(t *testing.T, url string, _ storeurl.Server) {
		first, second := startTwo(t, url)
		first.GoOn()
		first.Says("issues")
		second.GoOn()
		second.Says("asks for issue_cert_example.com")
		finish(first)
		if n := finish(second); n > 0 {
			t.Errorf("the second instance has issued %d times", n)
		}
	})
}

func TestWithoutLocksBothIssue(t *testing.T) {
	t.Parallel()
	first, second := startTwo(t, "")
	first.GoOn()
	first.Says("issues")
	second.GoOn()
	second.Says("issues")
}

func TestAKilledInstanceIsReplaced(t *testing.T) {
	onStores(t, func(t *testing.T, url string, _ storeurl.Server) {
		first, second := startTwo(t, url)
		first.GoOn()
		first.Says("issues")
		second.GoOn()
		second.Says("asks for ")
		first.Kill()
		second.Says("issues")
		second.GoOn()
		second.Says("done")
	})
}

// An outage that takes longer than the TTL ends the lease. Another instance then issues the same certificate beside the
// first, which learns it when it unlocks.
func TestAnOutageLetsTwoInstancesIssue(t *testing.T) {
	onStores(t, func(t *testing.T, url string, s storeurl.Server) {
		first, second := startTwo(t, url)
		first.GoOn()
		first.Says("issues")
		s.Kill()
		first.Says("ended: lock lost: expired")
		s.Restart()
		second.GoOn()
		second.Says("issues")
		first.GoOn()
		if text := first.Says("unlocked: "); !strings.Contains(text, "lock lost") {
			t.Errorf("Unlock returned %s", text)
		}
		first.Says("done")
		second.GoOn()
		second.Says("done")
	})
}
