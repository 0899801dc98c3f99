package judge

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertest"
	"github.com/golocker/locker/middleware/audit"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

var (
	events = flag.Int("events", 4000, "how many lines the logs of TestNothingIsFoundInLogsOfFaults have at least")
	kept   = flag.String("logs", "", "a directory to which it writes them")
)

// withoutGroups is a store of which each permit and each reader has a lock of its own.
type withoutGroups struct{ *lockertest.Store }

func (s withoutGroups) Capabilities() backend.Capabilities {
	c := s.Store.Capabilities()
	c.Groups, c.Kinds = false, false
	return c
}

// program is a process that uses locks of all kinds, with its log.
type program struct {
	lines   bytes.Buffer
	log     *audit.Log
	client  *locker.Client
	lockers []locker.Locker
	all     sync.WaitGroup
}

func begins(store backend.Backend, name string) *program {
	p := &program{client: locker.NewClient(store)}
	p.log = audit.New(&p.lines)
	defaults := locker.Defaults(locker.TTL(time.Second), locker.Patience(time.Second))
	l := locker.Wrap(p.client, defaults, p.log.Middleware(name))
	rw, permits := rwlock.New(l), semaphore.New(l, 3)
	p.lockers = []locker.Locker{
		l, permits, permits.Weight(2), rw.Shared(), rw.Shared(), rw.Exclusive(), rw.Upgradeable(),
	}
	return p
}

// work acquires locks, holds them for some time, and does with them what can be done, until the time is over.
func (p *program) work(ctx context.Context) {
	for ctx.Err() == nil {
		l, opts := p.lockers[rand.IntN(len(p.lockers))], []locker.Option{}
		if rand.IntN(6) == 0 {
			opts = append(opts, locker.NoRenewal())
		}
		limited, cancel := context.WithTimeout(ctx, rand.N(time.Second))
		lease, err := l.Lock(limited, fmt.Sprint("k", rand.IntN(3)), opts...)
		cancel()
		for err == nil && rand.IntN(3) > 0 {
			time.Sleep(rand.N(20 * time.Millisecond << rand.IntN(7)))
			was := lease
			switch rand.IntN(4) {
			case 0:
				_ = lease.Extend(ctx)
			case 1:
				_ = locker.Verify(ctx, lease)
			case 2:
				limited, cancel := context.WithTimeout(ctx, rand.N(time.Second))
				if lease, err = rwlock.Upgrade(limited, lease); err != nil {
					lease, err = was, nil
				}
				cancel()
			default:
				if lease, err = rwlock.Downgrade(ctx, lease); err != nil {
					lease, err = was, nil
				}
			}
		}
		if lease != nil {
			_ = lease.Unlock(ctx)
			continue
		}
		time.Sleep(rand.N(time.Second)) // most lines should tell of something
	}
}

// ends returns the log as it may be found after an incident: late by the clock, cut off, or with a gap.
func (p *program) ends(t *testing.T, apart time.Duration) string {
	p.all.Wait()
	_ = p.client.Close()
	_ = p.log.Close()
	text := late(t, p.lines.String(), rand.N(apart))
	from := rand.IntN(len(text))
	switch rand.IntN(4) {
	case 0:
		return text[:from]
	case 1:
		to := min(len(text)-1, from+rand.IntN(2000))
		return text[:from] + text[to+strings.IndexByte(text[to:], '\n')+1:] // whole lines follow a torn one
	}
	return text
}

// Whatever the clients of a sound store do while it cannot be reached, is slow, or an operator takes locks by force,
// and whatever is missing from their logs, nothing is found.
func TestNothingIsFoundInLogsOfFaults(t *testing.T) {
	const apart = 5 * time.Millisecond
	for n, lines := 0, 0; lines < *events; n++ {
		var texts []string
		virtual.Test(t, func(t *testing.T) {
			store := lockertest.NewStore()
			of, name := backend.Backend(store), fmt.Sprint("store ", n)
			if n%2 > 0 {
				of = withoutGroups{store}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			operates := begins(of, name)
			operator, _ := locker.As[inspect.Inspector](operates.lockers[0])
			var programs []*program
			for range 4 {
				p := begins(of, name)
				for range 3 {
					p.all.Go(func() { p.work(ctx) })
				}
				programs = append(programs, p)
			}
			for ctx.Err() == nil {
				time.Sleep(rand.N(2 * time.Second))
				switch rand.IntN(4) {
				case 0:
					store.Down()
					time.Sleep(rand.N(1500 * time.Millisecond))
					store.Up()
				case 1:
					store.Delay(rand.N(30 * time.Millisecond))
				default:
					_, _ = operator.ForceRelease(ctx, fmt.Sprint("k", rand.IntN(3)), "")
				}
			}
			store.Delay(0)
			_, _ = operates.client.Close(), operates.log.Close()
			texts = append(texts, operates.lines.String())
			for _, p := range programs {
				texts = append(texts, p.ends(t, apart))
			}
		})
		logs := New()
		for i, text := range texts {
			name := fmt.Sprintf("%d-%d.jsonl", n, i)
			if err := logs.Read(name, strings.NewReader(text)); err != nil {
				t.Fatal(err)
			}
			if *kept != "" {
				if err := os.WriteFile(filepath.Join(*kept, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, found := judged(t, logs, Options{Clocks: true, ClockError: apart}); found != nil {
			for _, e := range found[0].Entries {
				t.Logf("%+v", e)
			}
			t.Fatal(len(found), found[0])
		}
		lines += logs.Lines
	}
}
