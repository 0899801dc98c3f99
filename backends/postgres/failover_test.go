package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/short"
)

// The primary dies under load, while two workers keep locks. A synchronous standby that takes over knows these locks:
// no two workers have a lock at the same time. A standby that lacks the latest locks grants them again, with greater
// tokens. In both cases everybody goes on, and nothing is left behind.
func TestFailover(t *testing.T) {
	t.Parallel()
	for _, standby := range short.Part(t, 0, []string{"synchronous", "lagging"}) {
		t.Run(standby, func(t *testing.T) {
			t.Parallel()
			testFailover(t, standby == "synchronous")
		})
	}
}

func testFailover(t *testing.T, synchronous bool) {
	primary := migrated(t, "wal_level=replica")
	standby := pgtest.Standby(t, primary)
	p := pool(t, primary.URL("postgres"))
	set := func(s *pgtest.Server, setting, value string) {
		own := pool(t, s.URL("postgres"))
		run(t, own, "ALTER SYSTEM SET "+setting+" = '"+value+"'")
		run(t, own, "SELECT pg_reload_conf()")
	}
	streaming := func() string { return strings.Join(texts(t, p, "SELECT sync_state FROM pg_stat_replication"), " ") }
	if synchronous {
		set(primary, "synchronous_standby_names", "standby")
		eventually(t, "the standby is synchronous", func() bool { return streaming() == "sync" })
	}
	c := gather(t, pgtest.URLs("postgres", primary, standby)+"&target_session_attrs=read-write")
	c.more(30)
	if !synchronous {
		set(standby, "primary_conninfo", "")
		eventually(t, "the standby follows nobody", func() bool { return streaming() == "" })
		c.more(30)
	}
	c.freeze()
	if synchronous { // nothing is granted that the standby does not have
		standby.Pause()
		c.seats.Store(crowdWorkers)
		<-time.After(500 * time.Millisecond)
	}
	primary.Kill()
	c.seats.Store(0)
	standby.Resume()
	standby.Promote()
	c.more(60)
	double, backwards := c.disperse()
	switch {
	case synchronous && double > 0:
		t.Errorf("behind a synchronous standby: got %d locks that two workers had at the same time", double)
	case !synchronous && double == 0:
		t.Error("behind a lagging standby: nobody was granted a lock that another one had, so that the test shows nothing")
	}
	if backwards > 0 {
		t.Errorf("got %d tokens that are not greater than earlier ones of their keys", backwards)
	}
	nothingLeft(t, standby.URL("postgres"))
}
