package natslock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/natslock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/natstest"
)

// examined returns what an examination of l finds, each finding in one line.
func examined(t *testing.T, l locker.Locker) string {
	t.Helper()
	x, ok := locker.As[inspect.Examiner](l)
	if !ok {
		t.Fatal("the Locker cannot be examined")
	}
	var text strings.Builder
	for _, f := range x.Examine(t.Context()) {
		fmt.Fprintf(&text, "%s %s: %s; fix: %s\n", f.Level, f.Check, f.Text, f.Fix)
		if (f.Level == inspect.OK) != (f.Fix == "") {
			t.Errorf("a finding without advice, or with advice that is not needed: %+v", f)
		}
	}
	return text.String()
}

// An examination names what is wrong with a server, a user or a bucket, and what to do.
func TestExaminationsNameTheFault(t *testing.T) {
	t.Parallel()
	s := natstest.StartConfigured(t, `
authorization { users: [
  {user: admin, password: p}
  {user: none, password: p, permissions: {publish: "x", subscribe: "_INBOX.>"}}
  {user: untold, password: p, permissions: {publish: ">", subscribe: "_INBOX.>"}}
] }
`)
	js, err := jetstream.New(dial(t, "nats://admin:p@"+s.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	bucket := func(name string, change func(c *jetstream.StreamConfig)) {
		c := natslock.StreamConfig()
		c.Name, c.Subjects = "KV_"+name, []string{"$KV." + name + ".>"}
		c.RePublish.Source, c.RePublish.Destination = c.Subjects[0], "locker.v2."+name+".>"
		change(&c)
		if _, err := js.CreateStream(context.Background(), c); err != nil {
			t.Fatal(err)
		}
	}
	bucket("locker", func(*jetstream.StreamConfig) {})
	bucket("unacknowledged", func(c *jetstream.StreamConfig) { c.NoAck = true })
	bucket("early", func(c *jetstream.StreamConfig) { c.FirstSeq = 0 })
	bucket("aging", func(c *jetstream.StreamConfig) { c.MaxAge = 1e12 })
	bucket("single", func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false })
	for url, want := range map[string][]string{
		"nats://admin:p@": {"ok connection: connected to", "ok bucket: locker is fit", "ok replicas: "},
		"nats://none:p@":  {`fail bucket: `, `"$JS.API.STREAM.INFO.KV_locker"`, "fix: grant this right"},
		"nats://untold:p@": {"ok bucket", "warn messages: waiters are not notified",
			"fix: allow the user to subscribe to locker.v2.locker.>"},
		"nats://admin:wrong@":                   {"fail connection: ", "Authorization Violation; fix: correct the user"},
		"nats://admin:p@?bucket=unacknowledged": {"fail bucket: ", "fix: set sealed and no_ack to false"},
		"nats://admin:p@?bucket=early":          {"fail bucket: ", "fix: use another bucket, made with the right first_seq"},
		"nats://admin:p@?bucket=aging":          {"fail bucket: ", "fix: set max_age to 0"},
		"nats://admin:p@?bucket=single":         {"ok bucket: ", "warn batches: ", "set allow_atomic"},
		"nats://admin:p@?replicas=3":            {"fail bucket: ", "fix: set num_replicas to 3"},
		"nats://admin:p@?domain=none":           {"fail bucket: ", "fix: switch JetStream on"},
	} {
		before, after, _ := strings.Cut(url, "@")
		if after == "" {
			after = "?"
		}
		l, err := config.Open(t.Context(), before+"@"+s.Addr()+after+"&timeout=1s")
		if err != nil {
			t.Fatal(err)
		}
		text := examined(t, l)
		_ = l.Close()
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: expected %q, found\n%s", url, w, text)
			}
		}
	}
}

// In a cluster, a bucket that one server keeps is a finding.
func TestExaminationsOfClusters(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	for _, replicas := range []int{1, 3} {
		b := natslock.NewBackend(c.js, natslock.Replicas(replicas), natslock.Bucket(fmt.Sprint("r", replicas)))
		l := locker.NewClient(b)
		defer l.Close()
		c.within("a lock", func(ctx context.Context) error {
			_, err := l.TryLock(ctx, "k")
			return err
		})
		want := "ok replicas: 3 servers keep the bucket"
		if replicas == 1 {
			want = "warn replicas: nobody gets a lock while one of 1 servers is down; fix: nats stream edit KV_r1"
		}
		if text := examined(t, l); !strings.Contains(text, want) {
			t.Errorf("%d replicas: expected %q, found\n%s", replicas, want, text)
		}
	}
}
