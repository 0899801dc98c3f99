package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// flaky builds the tests of internal/testing/retest/testdata/flaky, which pass, fail, fail once or panic. Which of them
// run is in match.
func flaky(t *testing.T, match string) binary {
	t.Helper()
	t.Setenv("MARK", filepath.Join(t.TempDir(), "mark"))
	bs, err := build(t.TempDir(), []suite{{"flaky", []string{"../retest/testdata/flaky"}, []string{"-test.run=" + match}}})
	require.NoError(t, err)
	require.Len(t, bs, 1)
	return bs[0]
}

func TestTestsThatPass(t *testing.T) {
	o := flaky(t, "TestPasses").onServer("/servers/x/redis-server")
	assert.Equal(t, map[string]string{"TestPasses": "pass"}, o.results)
	assert.Empty(t, o.broken+strings.Join(o.failed(), " "))
}

// A test that fails once, because the machine was busy, has passed, and is named. One that fails again has failed.
func TestTestsThatFailAreRunAgain(t *testing.T) {
	o := flaky(t, "TestFailsOnce|TestFails$").onServer("/servers/x/redis-server")
	o.retry("/servers/x/redis-server")
	assert.Equal(t, []string{"TestFails"}, o.failed())
	assert.Equal(t, []string{"TestFailsOnce"}, o.flaky)
	assert.Equal(t, map[string]string{"TestFails": "fail", "TestFailsOnce": "pass"}, o.results)
}

// After a panic the other tests have not run, so nothing is run again: their results would be missing.
func TestTestsThatPanic(t *testing.T) {
	o := flaky(t, "TestPanics").onServer("/servers/x/redis-server")
	o.retry("/servers/x/redis-server")
	assert.Contains(t, o.broken, "it panicked")
	assert.Empty(t, o.flaky)
	tally := &tally{}
	tally.add(o)
	assert.False(t, (&server{tally: tally}).sound())
}

// A server that cannot be installed has a row that says why, and the others are tested all the same.
func TestServerThatCannotBeInstalled(t *testing.T) {
	t.Chdir("../../..")
	s := examine("redis-0.1", nil, 1)
	assert.False(t, s.sound())
	assert.Contains(t, s.row(), "| redis-0.1 | not tested: scripts/servers: no server is called redis-0.1; there are ")
	columns := func(line string) int { return strings.Count(line, "|") }
	assert.Equal(t, columns(header[0]), columns(s.row()))
}

// The packages that the suites name are there, and so are the tests that they choose.
func TestSuitesHaveTests(t *testing.T) {
	t.Chdir("../../..")
	for _, s := range suites {
		dirs, err := packagesOf(s)
		assert.NoError(t, err)
		assert.NotEmpty(t, dirs, s.name)
	}
	_, err := packagesOf(suite{"none", []string{"docs"}, nil})
	assert.ErrorContains(t, err, "docs has no tests")
}

func TestLongestFirst(t *testing.T) {
	var order []string
	all := []binary{{dir: "drivers/all"}, {dir: "redlock"}, {dir: "internal/node"}, {dir: "single"}}
	for _, b := range longestFirst(all) {
		order = append(order, b.dir)
	}
	assert.Equal(t, []string{"single", "redlock", "drivers/all", "internal/node"}, order)
}

func TestVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "server")
	for said, want := range map[string]string{
		"Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=e08dbad3e06f3fb": "Redis 7.0.15",
		"Valkey server v=9.1.2 sha=0": "Valkey 9.1.2", "none": "",
	} {
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\necho '"+said+"'\n"), 0o700))
		got, err := version(path)
		assert.Equal(t, want, got)
		assert.Equal(t, want == "", err != nil)
	}
}
