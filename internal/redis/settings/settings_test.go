package settings_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker/internal/redis/settings"
)

// sound has the settings of a server that keeps all promises.
func sound() settings.Snapshot {
	return settings.Snapshot{
		Info: map[string]string{
			"redis_version": "7.0.15", "role": "master", "connected_slaves": "0", "aof_enabled": "1",
			"aof_last_write_status": "ok", "maxmemory": "0", "used_memory": "1000000", "evicted_keys": "0",
			"maxmemory_policy": "noeviction",
		},
		Config: map[string]string{
			"appendfsync": "always", "no-appendfsync-on-rewrite": "no", "save": "", "replica-read-only": "yes",
			"min-replicas-to-write": "0", "min-replicas-max-lag": "10",
			"lua-time-limit": "5000",
		},
	}
}

// Each setting under which a promise does not hold is named, with the promise, and with the setting that would do.
func TestEachSettingIsJudged(t *testing.T) {
	const exclusion, tokens = "exclusion (E1)", "tokens without clocks (G1)"
	type fields = map[string]string
	for name, c := range map[string]struct {
		info, config fields
		use          settings.Use
		want         string // "level check: part of the text"; empty: all is well
		promise      []string
		fix          string
	}{
		"sound": {use: settings.Use{TTL: 10 * time.Second}},
		"no file": {info: fields{"aof_enabled": "0"}, want: "warn persistence: forgets all locks and counters",
			promise: []string{exclusion, tokens}, fix: "CONFIG SET appendonly yes and appendfsync always"},
		"snapshots": {info: fields{"aof_enabled": "0"}, config: fields{"save": "3600 1"},
			want: "warn persistence: (save 3600 1)", promise: []string{exclusion, tokens}, fix: "appendonly yes"},
		"everysec": {config: fields{"appendfsync": "everysec"}, use: settings.Use{TTL: time.Minute},
			want: "warn persistence: the last second or two", promise: []string{exclusion, tokens},
			fix: "CONFIG SET appendfsync always, and write it to redis.conf (each write then waits for the disk); or use a " +
				"restart guard (docs/safety.md); or keep it away after a restart for as long as the longest TTL (1m0s if " +
				"that is what all use)"},
		"no fsync": {config: fields{"appendfsync": "no"}, want: "warn persistence: the last 30 s",
			promise: []string{exclusion, tokens}, fix: "appendfsync always"},
		"no fsync on rewrite": {config: fields{"no-appendfsync-on-rewrite": "yes"},
			want: "warn persistence: while the file is rewritten", promise: []string{exclusion, tokens},
			fix: "CONFIG SET no-appendfsync-on-rewrite no"},
		"everysec, and a guard": {config: fields{"appendfsync": "everysec"}, use: settings.Use{Guard: time.Minute}},
		"no file, but a guard":  {info: fields{"aof_enabled": "0"}, use: settings.Use{Guard: time.Minute}},
		"volatile, and a guard": {info: fields{"maxmemory_policy": "volatile-lru"}, use: settings.Use{Guard: time.Minute},
			want: "warn eviction: it deletes locks", promise: []string{exclusion}, fix: "noeviction"},
		"lag": {info: fields{"connected_slaves": "1"}, config: fields{"min-replicas-to-write": "1"},
			use: settings.Use{Guard: time.Minute}, want: "warn replicas: the restart guard allows for 3.2s",
			promise: []string{exclusion}, fix: "CONFIG SET min-replicas-max-lag 2"},
		"short lag": {info: fields{"connected_slaves": "1"}, use: settings.Use{Guard: time.Minute},
			config: fields{"min-replicas-to-write": "1", "min-replicas-max-lag": "3"}},
		"full disk": {info: fields{"aof_last_write_status": "err"}, want: "fail persistence: cannot be written",
			promise: []string{exclusion, tokens}, fix: "make room"},
		"volatile, no limit": {info: fields{"maxmemory_policy": "volatile-lru"}, promise: []string{exclusion},
			want: "warn eviction: it deletes locks, because they have an expiry", fix: "maxmemory-policy noeviction"},
		"volatile": {info: fields{"maxmemory_policy": "volatile-ttl", "maxmemory": "100000000"},
			want: "fail eviction: 100000000 bytes of memory are full", promise: []string{exclusion}, fix: "noeviction"},
		"allkeys": {info: fields{"maxmemory_policy": "allkeys-lfu", "maxmemory": "100000000"},
			want: "fail eviction: locks and counters", promise: []string{exclusion, tokens}, fix: "noeviction"},
		"evicted": {info: fields{"maxmemory_policy": "allkeys-lru", "evicted_keys": "7"}, fix: "noeviction",
			want: "fail eviction: 7 keys have been evicted", promise: []string{exclusion, tokens}},
		"nearly full": {info: fields{"maxmemory": "1050000"}, want: "warn memory: 1000000 of 1050000 bytes are used",
			fix: "raise maxmemory"},
		"half full": {info: fields{"maxmemory": "2000000"}},
		"replicas of a node": {info: fields{"connected_slaves": "2"}, use: settings.Use{Redlock: true},
			want: "warn replicas: has 2 replicas", promise: []string{exclusion}, fix: "standalone"},
		"replicas, and a minimum": {info: fields{"connected_slaves": "2"}, config: fields{"min-replicas-to-write": "1"},
			want: "warn replicas: may lack the latest locks", promise: []string{exclusion}, fix: "restart guard"},
		"no replica to wait for": {use: settings.Use{Replicas: 1},
			want: "fail replicas: replicas=1 is configured, and 0 can confirm", fix: "connect more replicas"},
		"a replica without data": {use: settings.Use{Replicas: 2}, info: fields{"connected_slaves": "2",
			"slave0": "ip=a,port=1,state=online,offset=1,lag=0", "slave1": "ip=b,port=1,state=wait_bgsave,offset=0,lag=0"},
			want: "fail replicas: replicas=2 is configured, and 1 can confirm", fix: "wait until they have"},
		"waiting for some": {use: settings.Use{Replicas: 1}, config: fields{"min-replicas-to-write": "1"},
			info: fields{"connected_slaves": "2"}, promise: []string{exclusion},
			want: "warn replicas: it has 2 replicas, and 1 of them confirm a lock", fix: "raise replicas= to 2"},
		"waiting for all": {use: settings.Use{Replicas: 2}, info: fields{"connected_slaves": "2"},
			config: fields{"min-replicas-to-write": "1"}},
		"waiting for all, and no minimum": {use: settings.Use{Replicas: 1}, info: fields{"connected_slaves": "1"},
			want: "warn replicas: min-replicas-to-write is 0", promise: []string{exclusion}, fix: "min-replicas-to-write 1"},
		"writable replica": {config: fields{"replica-read-only": "no"}, want: "warn replicas: replica-read-only is no",
			promise: []string{exclusion}, fix: "CONFIG SET replica-read-only yes"},
		"scripts for ever": {config: fields{"lua-time-limit": "0"}, want: "warn slow scripts: SCRIPT KILL cannot end it",
			promise: []string{"renewed"}, fix: "CONFIG SET lua-time-limit 5000"},
		"scripts for long": {config: fields{"lua-time-limit": "60000"}, use: settings.Use{TTL: 30 * time.Second},
			want: "warn slow scripts: leases of 30s end", promise: []string{"renewed"}, fix: "a longer TTL"},
		"scripts for longer than a short TTL": {use: settings.Use{TTL: 3 * time.Second},
			want: "warn slow scripts: leases of 3s end", promise: []string{"renewed"}, fix: "lua-time-limit 1000 "},
	} {
		t.Run(name, func(t *testing.T) {
			s := sound()
			maps.Copy(s.Info, c.info)
			maps.Copy(s.Config, c.config)
			var bad []settings.Finding
			for _, f := range settings.Check(s, c.use) {
				if f.Level != settings.OK {
					bad = append(bad, f)
				}
			}
			if c.want == "" {
				assert.Empty(t, bad)
				return
			}
			if assert.Len(t, bad, 1) {
				head, part, _ := strings.Cut(c.want, ": ")
				assert.Equal(t, head, string(bad[0].Level)+" "+bad[0].Check)
				assert.Contains(t, bad[0].Text, part)
				assert.Contains(t, bad[0].Fix, c.fix)
				assert.Equal(t, strings.Join(c.promise, " and ") != "", bad[0].Promise != "")
				for _, p := range c.promise {
					assert.Contains(t, bad[0].Promise, p)
				}
			}
		})
	}
}

// A master of which nobody knows how many replicas it needs goes on granting after a failover.
func TestCutOffMaster(t *testing.T) {
	s := sound()
	s.Info["connected_slaves"] = "1"
	var texts []string
	for _, f := range settings.Check(s, settings.Use{}) {
		if f.Check == "replicas" {
			texts = append(texts, f.Text)
		}
	}
	if assert.Len(t, texts, 2) {
		assert.Contains(t, texts[1], "min-replicas-to-write is 0")
	}
}

// What a server did not tell is neither good nor bad.
func TestUnknownSettings(t *testing.T) {
	s := settings.Read(nil)
	assert.Empty(t, settings.Check(s, settings.Use{TTL: time.Second}))
	assert.Contains(t, s.Unknown(), "appendfsync")
	s = sound()
	assert.Empty(t, s.Unknown())
	delete(s.Config, "appendfsync")
	assert.Equal(t, []string{"appendfsync"}, s.Unknown())
	for _, f := range settings.Check(s, settings.Use{}) {
		assert.Equal(t, settings.OK, f.Level, "%+v", f)
	}
}

func TestClocks(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		ahead   [3]time.Duration
		unsure  time.Duration
		level   settings.Level
		promise bool
		text    string
	}{
		{[3]time.Duration{0, 2 * ms, -3 * ms}, ms, settings.OK, false, "they agree to 5ms, give or take 2ms"},
		{[3]time.Duration{0, 100 * ms, 0}, ms, settings.Warn, false, "b is 100ms ahead of a, give or take 2ms: locks cost"},
		{[3]time.Duration{0, 100 * ms, 0}, 20 * ms, settings.OK, false, "they agree to 100ms"},
		{[3]time.Duration{0, 0, -5000 * ms}, ms, settings.Warn, true, "a is 5s ahead of c"},
	} {
		var readings []settings.Clock
		for i, ahead := range c.ahead {
			readings = append(readings, settings.Clock{Node: string(rune('a' + i)), Ahead: ahead, Error: c.unsure})
		}
		f, ok := settings.Clocks(readings)
		assert.True(t, ok)
		assert.Equal(t, c.level, f.Level, f.Text)
		assert.Equal(t, c.promise, f.Promise != "", f.Text)
		assert.Contains(t, f.Text, c.text)
		assert.Equal(t, c.level != settings.OK, f.Fix != "")
		_, ok = settings.Clocks(readings[:1])
		assert.False(t, ok)
	}
}
