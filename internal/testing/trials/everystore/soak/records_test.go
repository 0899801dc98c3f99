package soak

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/trials/everystore/deployment"
	"github.com/golocker/locker/record"
)

const (
	// recordsEnv is how many locks are acquired on each store of records, such as 10000. Without it, there are few, on the
	// stores that need no server.
	recordsEnv = "LOCKER_SOAK_RECORDS"
	// contenders is how many processes want the locks.
	contenders = 6
)

// Whatever happens to processes, servers, networks and single requests, a store that knows nothing of locks keeps the
// promises that TestSoak is about.
func TestRecords(t *testing.T) {
	g := newGoal(t, recordsEnv, goal{count: 100})
	for _, d := range deployment.Records {
		if !g.all && !d.Light || !strings.Contains(d.Name, os.Getenv(onlyEnv)) {
			continue
		}
		t.Run(d.Name, func(t *testing.T) {
			tr := newTrial(t, d)
			tr.boundPlaces()
			tr.soak(contenders, ofLocksAndPlaces, g)
			tr.nothingLeft(locksOfPlaces)
		})
	}
}

// hasty is a scheme whose locks end before their holders know: the store has a quarter of the TTL, and they are renewed
// after a third.
const hasty = "hasty"

func init() {
	deployment.Register(hasty, func(s record.Store) backend.Backend { return quarters{record.NewBackend(s)} })
}

type quarters struct{ *record.Backend }

func (q quarters) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	req.TTL /= 4
	return q.Backend.Acquire(ctx, req)
}

func (q quarters) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	req.TTL /= 4
	return q.Backend.Queue(ctx, req, wait)
}

func (q quarters) Extend(ctx context.Context, req backend.Request) error {
	req.TTL /= 4
	return q.Backend.Extend(ctx, req)
}

// withoutConditions removes the condition from requests that replace a record.
func withoutConditions(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("If-Match")
		h.ServeHTTP(w, r)
	})
}

// The judge finds stores of records that are broken, and backends that are, and so does who reads the audit logs.
func TestBrokenRecordsAreFound(t *testing.T) {
	sound := func(h http.Handler) http.Handler { return h }
	for _, d := range []deployment.Deployment{
		deployment.Served("a store that ignores versions", deployment.Scheme, withoutConditions),
		deployment.Served("a backend whose locks end too early", hasty, sound),
	} {
		t.Run(d.Name, func(t *testing.T) {
			tr := newTrial(t, d)
			tr.boundPlaces()
			tr.begin(contenders, plan{Work: ofLocksAndPlaces, Mixed: 10})
			began := time.Now()
			tr.disturb(func() bool { return len(tr.judge.verdict()) > 0 || time.Since(began) > hangLimit })
			tr.end()
			wrong := tr.judge.verdict()
			if len(wrong) == 0 {
				t.Fatalf("the judge found nothing within %v", hangLimit)
			}
			t.Logf("after %v and %v: %d findings, such as %s", time.Since(began).Round(time.Second), tr.faults, len(wrong),
				wrong[0])
			if found := tr.judgeLogs(); len(found) == 0 {
				t.Error("the audit logs do not show it")
			} else {
				t.Log(found[0])
			}
		})
	}
}
