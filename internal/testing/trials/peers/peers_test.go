package peers

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
)

const (
	// peersEnv is how long each library of [peers] meets each of [troubles]. Without it, two libraries meet one, for
	// seconds.
	peersEnv = "LOCKER_PEERS"
	// peersOnlyEnv selects cells by a part of their names.
	peersOnlyEnv = "LOCKER_PEERS_ONLY"
	// ttl is that of all libraries that can be told one. It is the least of etcd.
	ttl = 2 * time.Second
	// limit is that of each call that can be told one.
	limit = 10 * time.Second
	// looks is how often a holder tells that it holds the lock.
	looks = 3 * time.Millisecond
	// runs is how often all do.
	runs = 3
	// beside is how many cells are measured at once. They mostly wait.
	beside = 6
)

// peer is a library with its servers.
type peer struct {
	name string
	on   string
	open func(at string) (library, error)
	// alone has the troubles in which the library does not promise that a holder is alone. docs/trust.md says where its
	// documentation has that.
	alone []string
}

// peers are the libraries, in the order of the tables.
var peers = []peer{
	{"a lock that does nothing", "", openControl, nil},
	{"`SET NX` by hand", oneRedis, openByHand, []string{stopped, restarted, failedOver}},
	{"redsync", oneRedis, openRedsync, []string{stopped, restarted, failedOver}},
	{"redsync, 5 servers", fiveRedis, openRedsync, []string{stopped, restarted}},
	{"redislock", oneRedis, openRedislock, []string{stopped, restarted, failedOver, silent}},
	{"rueidislock", oneRedis, openRueidislock, []string{stopped, restarted, failedOver}},
	{"etcd's `concurrency.Mutex`", etcd, openEtcd, []string{stopped}},
	{"PostgreSQL's advisory locks", postgres, openAdvisory, []string{restarted, cut}},
	{"locker, Redis", oneRedis, openOurs("redis+goredis", ""), []string{stopped, restarted, failedOver}},
	{"locker, Redis, `guard`", oneRedis, openOurs("redis+goredis", "?guard="+ttl.String()), []string{stopped}},
	{"locker, Redlock of 5", fiveRedis, openOurs("redlock+goredis", ""), []string{stopped, restarted}},
	{"locker, etcd", etcd, openOurs("", ""), []string{stopped}},
	{"locker, PostgreSQL", postgres, openOurs("", ""), []string{stopped}},
}

// The test binary is also the program of the workers.
func TestMain(m *testing.M) {
	if os.Getenv(planEnv) != "" {
		workHere()
		return
	}
	goleak.VerifyTestMain(m, redistest.Lingering()...)
}

func (p plan) peer() peer {
	return peers[slices.IndexFunc(peers, func(it peer) bool { return it.name == p.Peer })]
}

const (
	calm       = "no fault"
	killed     = "kill -9"
	stopped    = "SIGSTOP"
	restarted  = "server restarted"
	failedOver = "failover"
	cut        = "connections cut"
	silent     = "connections silent"
	leader     = "leader stopped"
	oneShot    = "one-shot, kill -9"
)

// troubles are what libraries meet, again and again, in the order of the tables.
var troubles = []struct {
	name string
	on   []string // the servers that can have it; nil: all
	long bool     // locks are wanted for longer than the TTL, or for half of it if the library does not renew them
	hit  func(tr *trial, holder int, meanwhile func())
}{
	{calm, []string{"", oneRedis, fiveRedis, etcd, postgres}, false, nil},
	{killed, nil, false, func(tr *trial, i int, _ func()) { tr.replace(i) }},
	{stopped, nil, false, func(tr *trial, i int, meanwhile func()) {
		_ = tr.all[i].cmd.Process.Signal(syscall.SIGSTOP)
		defer func() { _ = tr.all[i].cmd.Process.Signal(syscall.SIGCONT) }()
		meanwhile()
	}},
	{restarted, nil, true, func(tr *trial, _ int, _ func()) { tr.servers[rand.IntN(len(tr.servers))].Restart() }},
	{failedOver, []string{oneRedis}, true, func(tr *trial, _ int, _ func()) { tr.failOver() }},
	{cut, nil, true, func(tr *trial, i int, _ func()) {
		for _, r := range tr.all[i].ways {
			r.Cut()
		}
	}},
	{silent, nil, true, func(tr *trial, i int, meanwhile func()) {
		for _, r := range tr.all[i].ways {
			defer r.Hang()()
		}
		meanwhile()
	}},
	{leader, []string{etcd}, true, func(tr *trial, _ int, _ func()) { tr.leaderStops() }},
	{oneShot, nil, false, func(tr *trial, i int, _ func()) { tr.replace(i) }},
}

// register is a resource in two copies, each a number by key: one takes what it is told, the other refuses a token that
// is smaller than one that it has seen.
type register struct {
	mu      sync.Mutex
	numbers map[string][2]int
	written map[string][2]int // how often
	token   map[string]uint64 // the greatest by key
}

// ServeHTTP implements http.Handler.
func (r *register) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := q.FormValue("key")
	token, _ := strconv.ParseUint(q.FormValue("token"), 10, 64)
	if q.Method == http.MethodPut {
		var read [2]int
		_, _ = fmt.Sscan(q.FormValue("numbers"), &read[0], &read[1])
		numbers, written := r.numbers[key], r.written[key]
		numbers[0], written[0] = read[0]+1, written[0]+1
		if token >= r.token[key] {
			numbers[1], written[1] = read[1]+1, written[1]+1
		}
		r.numbers[key], r.written[key] = numbers, written
	}
	r.token[key] = max(r.token[key], token)
	_, _ = fmt.Fprintf(w, "%d %d", r.numbers[key][0], r.numbers[key][1])
}

// lost returns how many updates were written, and are not there, without tokens and with them.
func (r *register) lost() (lost [2]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, written := range r.written {
		for i := range lost {
			lost[i] += written[i] - r.numbers[key][i]
		}
	}
	return lost
}

// figures are those of a cell.
type figures struct {
	hits               int // of the trouble
	acquired, overlaps int
	lost               [2]int
	tokens             bool
	beside             time.Duration // how long two held a lock at once at most
	longest, p50, p99  time.Duration
	left               int // behind
}

// Libraries meet troubles, and tables say what has come of it. Nothing is judged here but that the control is found
// out, and that the library is not.
func TestPeers(t *testing.T) {
	d, err := time.ParseDuration(os.Getenv(peersEnv))
	if err != nil {
		nothing, redis := 0, slices.IndexFunc(peers, func(p peer) bool { return p.name == "locker, Redis" })
		f := newTrial(t, peers[nothing], false).meets(0, 3*time.Second)
		if f.overlaps == 0 || f.lost[0] == 0 {
			t.Errorf("a lock that does nothing is not found out: %+v", f)
		}
		f = newTrial(t, peers[redis], false).meets(1, 3*time.Second)
		if f.overlaps > 0 || f.lost != [2]int{} || f.acquired == 0 {
			t.Errorf("a lock on Redis, whose holders are killed: %+v", f)
		}
		return
	}
	var mu sync.Mutex
	cells := map[[2]int][]figures{}
	for run := range runs {
		gate, running := make(chan struct{}, beside), sync.WaitGroup{}
		for i, p := range peers {
			for k, trouble := range troubles {
				name := p.name + ", " + trouble.name
				if !p.meets(trouble.on) || !strings.Contains(name, os.Getenv(peersOnlyEnv)) {
					continue
				}
				gate <- struct{}{}
				running.Go(func() {
					defer func() { <-gate }()
					t.Run(fmt.Sprintf("%s, %d", name, run+1), func(t *testing.T) {
						f := newTrial(t, p, trouble.name == failedOver).meets(k, d)
						t.Logf("%+v", f)
						mu.Lock()
						defer mu.Unlock()
						cells[[2]int{i, k}] = append(cells[[2]int{i, k}], f)
					})
				})
			}
		}
		running.Wait()
		tables(run+1, cells)
	}
}

// meets reports whether the library meets a trouble that such servers can have.
func (p peer) meets(on []string) bool {
	return on == nil && p.on != "" || slices.Contains(on, p.on)
}

// meets lets four processes contend with a library for one lock while a trouble hits them for d. If it is the leader's,
// twelve do, for ten locks and for longer, since only leases that were renewed can end too early.
func (tr *trial) meets(trouble int, d time.Duration) (f figures) {
	r := &register{numbers: map[string][2]int{}, written: map[string][2]int{}, token: map[string]uint64{}}
	server := httptest.NewServer(r)
	tr.Cleanup(server.Close)
	it, n := troubles[trouble], 4
	p := plan{
		Peer: tr.peer.name, Register: server.URL, Keys: 1, Hold: 50 * time.Millisecond, OneShot: it.name == oneShot,
	}
	if it.long {
		p.Hold = 2 * ttl
	}
	if it.name == leader {
		n, d, p.Keys = 12, 2*d, 10
	}
	for range n {
		tr.all = append(tr.all, tr.start(p, nil))
	}
	for range 100 { // at first, a restart guard rests
		if <-time.After(limit / 100); len(tr.heard()) > 0 {
			break
		}
	}
	began := time.Now()
	for until := began.Add(d); time.Now().Before(until); {
		<-time.After(min(time.Until(until), ttl/2+rand.N(ttl)))
		if it.hit != nil && time.Now().Before(until) {
			f.hits++
			it.hit(tr, tr.holder(), func() { <-time.After(ttl + rand.N(ttl)) })
		}
	}
	over := now()
	for _, p := range tr.all {
		_ = p.stdin.Close()
		late := time.AfterFunc(limit, p.kill)
		p.over.Wait()
		late.Stop()
	}
	f.measure(tr.heard(), began.UnixNano(), over)
	f.lost = r.lost()
	<-time.After(ttl + ttl/4)
	f.left = tr.leftBehind()
	return f
}

// holder returns a process that holds a lock, or any if none does for a while.
func (tr *trial) holder() int {
	for range 1000 {
		<-time.After(time.Millisecond)
		held := slices.DeleteFunc(tr.heard(), func(w word) bool { return w.Over })
		for i, p := range tr.all {
			if slices.ContainsFunc(held, func(w word) bool { return w.Who == p.Who }) {
				return i
			}
		}
	}
	return 0
}

// measure counts what was heard from when processes began until they were told to end.
func (f *figures) measure(heard []word, began, over int64) {
	slices.SortFunc(heard, func(a, b word) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.At, b.At)) })
	var waits []time.Duration
	var until int64
	for i, w := range heard {
		waits = append(waits, time.Duration(max(0, w.At-max(w.Began, began))))
		f.tokens = f.tokens || w.Token > 0
		first := i == 0 || heard[i-1].Key != w.Key
		switch {
		case first:
			until = 0
		case w.At < until:
			f.overlaps++
			f.beside = max(f.beside, time.Duration(min(until, w.Until)-w.At))
		}
		until = max(until, w.Until)
		next := over
		if i+1 < len(heard) && heard[i+1].Key == w.Key {
			next = heard[i+1].At
		}
		f.longest = max(f.longest, time.Duration(next-min(w.Until, w.Want)))
	}
	slices.Sort(waits)
	if f.acquired = len(waits); f.acquired > 0 {
		f.p50, f.p99 = waits[f.acquired/2], waits[f.acquired*99/100]
	}
}

// leftBehind counts keys, or rows and locks, that are still there some time after all processes have ended.
func (tr *trial) leftBehind() (n int) {
	ctx, cancel := context.WithTimeout(tr.Context(), limit)
	defer cancel()
	must := func(err error) {
		if err != nil {
			tr.Error(err)
		}
	}
	switch tr.peer.on {
	case oneRedis, fiveRedis:
		for _, addr := range tr.addrs() {
			c := redis.NewClient(&redis.Options{Addr: addr})
			keys, err := c.Keys(ctx, "*").Result()
			must(err)
			must(c.Close())
			n += len(keys)
		}
	case etcd:
		c, err := clientv3.New(clientv3.Config{Endpoints: tr.addrs()})
		must(err)
		all, err := c.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
		must(err)
		must(c.Close())
		n = int(all.Count)
	case postgres:
		c, err := pgx.Connect(ctx, tr.servers[0].(*pgtest.Server).URL("postgres"))
		must(err)
		must(c.QueryRow(ctx, `SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory') +
			(SELECT count(*) FROM locker.locks) + (SELECT count(*) FROM locker.waiters) +
			(SELECT count(*) FROM locker.undone)`).Scan(&n))
		must(c.Close(ctx))
	}
	return n
}

// tables prints the figures of all runs so far, from the least to the greatest, in a row for each library.
func tables(run int, cells map[[2]int][]figures) {
	const lost = "updates lost: without tokens, and with them if there are any"
	ms := func(d time.Duration) int { return int(d.Milliseconds()) }
	fmt.Printf("\nafter %d runs:\n", run)
	for _, table := range []struct {
		about string
		cells func(f figures) []int
		text  string
	}{
		{"overlapping holds, ms of the longest; of how many acquisitions, in how many faults",
			func(f figures) []int { return []int{f.overlaps, ms(f.beside), f.acquired, f.hits} }, "%s, %s; %s, %s"},
		{lost,
			func(f figures) []int { return f.lost[:] }, "%s; %s"},
		{"ms: the longest time in which nobody could lock; waits, p50 and p99",
			func(f figures) []int { return []int{ms(f.longest), ms(f.p50), ms(f.p99)} }, "%s; %s, %s"},
		{"left behind", func(f figures) []int { return []int{f.left} }, "%s"},
	} {
		fmt.Printf("\n%s\n\n| |", table.about)
		for _, trouble := range troubles {
			fmt.Printf(" %s |", trouble.name)
		}
		fmt.Printf("\n| --- |%s\n", strings.Repeat(" --- |", len(troubles)))
		for i, p := range peers {
			fmt.Printf("| %s |", p.name)
			for k, trouble := range troubles {
				text := "n/a"
				if f := cells[[2]int{i, k}]; len(f) > 0 {
					text = spread(f, table.cells, table.text)
					if table.about == lost && !f[0].tokens {
						text, _, _ = strings.Cut(text, ";")
					}
				}
				if slices.Contains(p.alone, trouble.name) {
					text += " †"
				}
				fmt.Printf(" %s |", text)
			}
			fmt.Println()
		}
	}
}

// spread formats some figures of all runs, each from the least to the greatest.
func spread(all []figures, of func(figures) []int, format string) string {
	var texts []any
	for i := range of(all[0]) {
		least, most := of(all[0])[i], of(all[0])[i]
		for _, f := range all {
			least, most = min(least, of(f)[i]), max(most, of(f)[i])
		}
		text := strconv.Itoa(least)
		if least < most {
			text += "–" + strconv.Itoa(most)
		}
		texts = append(texts, text)
	}
	return fmt.Sprintf(format, texts...)
}
