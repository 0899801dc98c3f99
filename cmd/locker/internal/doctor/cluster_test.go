package doctor_test

import (
	"strings"
	"testing"

	"github.com/golocker/locker/cmd/locker/internal/doctor"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
)

// The rights that locks need are others on a Redis Cluster, and doctor names those.
func TestRightsOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, false, durable...)
	if !c.Masters[0].Knows(t, "ssubscribe") {
		return // before Redis 7
	}
	const cluster, messages = "warn 1 deployment: a cluster", "ACL SETUSER locker +spublish +ssubscribe +sunsubscribe"
	for _, driver := range short.Part(t, 1, drivers.Reaching(drivers.RedisCluster)) {
		for _, tt := range short.Part(t, 3, []struct {
			rule string // after that of the documentation
			want []string
			fix  string // of the last finding
		}{
			{"&other", []string{cluster}, ""},
			{"-spublish", []string{cluster, "warn 1 messages: poll every 50 to 100 ms (NOPERM"}, messages},
			{"-cluster", []string{"fail 1 reachable: lacks a right (NOPERM"}, "ACL SETUSER locker +cluster"},
			{"-get", []string{cluster, "fail 1 rights: it lacks +get"}, "ACL SETUSER locker +get"},
			{"-ssubscribe", []string{cluster, "warn 1 messages: poll every 50 to 100 ms (NOPERM"}, messages},
			{"resetchannels", []string{cluster, "fail 1 rights: it lacks &{*}}lock:*"},
				"ACL SETUSER locker &{*}}lock:*"},
		}) {
			t.Run(driver+"/"+tt.rule, func(t *testing.T) {
				for _, s := range c.Masters {
					s.DocumentedUser(t, "+spublish", "+ssubscribe", "+sunsubscribe", "+cluster", "+command", "+info", "+config|get")
					s.Cmd(t, "ACL", "SETUSER", "locker", "-publish", "-subscribe", "-unsubscribe", tt.rule)
				}
				h, cfg := empty(), drivers.Config{Cluster: c.Addrs(), Username: "locker", Password: "password"}
				d, err := drivers.Open(t.Context(), driver, cfg)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = d.Close() })
				h.Nodes = []doctor.Node{{Name: "cluster", Username: "locker", Driver: d, Dial: cfg}}
				last := ""
				for _, f := range h.want(t, tt.want...).Findings {
					if f.Level != doctor.OK && f.Check != "deployment" {
						last = f.Fix
					}
				}
				if !strings.HasPrefix(last, tt.fix) {
					t.Errorf("the fix is %s", last)
				}
				for _, s := range c.Masters {
					if keys := s.Left(t); len(keys) > 0 {
						t.Errorf("left: %q", keys)
					}
				}
			})
		}
	}
}
