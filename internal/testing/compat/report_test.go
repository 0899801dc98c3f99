package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tried returns a server on which the given tests had the given results.
func tried(name string, outcomes ...*outcome) *server {
	s := &server{name: name, version: "Redis 7.0.15", commit: "abc1234", tally: &tally{},
		date: time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)}
	for _, o := range outcomes {
		s.tally.add(o)
	}
	return s
}

func outcomeOf(suite, dir string, results map[string]string) *outcome {
	return &outcome{binary: binary{suite: suite, dir: dir}, results: results}
}

func TestRowOfAServer(t *testing.T) {
	s := tried("redis-7.0", outcomeOf("one server", "single", map[string]string{"TestA": "pass", "TestE": "skip"}))
	assert.Equal(t, "| redis-7.0 | Redis 7.0.15 | pass | 2026-11-22 | abc1234 |", s.row())
	assert.True(t, s.sound())
	s.tally.add(outcomeOf("driver suite", "drivers/goredis", map[string]string{
		"TestF": "fail", "TestF/passes": "pass", "TestG": "fail", "TestG/fails": "fail",
	}))
	assert.Equal(t, "| redis-7.0 | Redis 7.0.15 | **2 fail** | 2026-11-22 | abc1234 |", s.row())
	assert.False(t, s.sound())
	assert.Equal(t, []string{"- redis-7.0: drivers/goredis TestF failed.", "- redis-7.0: drivers/goredis TestG failed."},
		s.notes())
}

// A run on one server leaves the rows of the others, and what people have written.
func TestRowsOfOtherServersStay(t *testing.T) {
	page := "# Servers\n\n| a table | of people |\n\n" + marker + "\n"
	bad := tried("valkey-8.0", outcomeOf("driver suite", "drivers/redigo", map[string]string{"TestA": "fail"}))
	good := tried("redis-7.0", outcomeOf("driver suite", "drivers/redigo", map[string]string{"TestA": "pass"}))
	for _, s := range []*server{bad, {name: "redis-6.0", missing: errors.New("no | network")}, good, good} {
		var err error
		page, err = merge(page, s)
		require.NoError(t, err)
	}
	above, below, _ := strings.Cut(page, marker)
	assert.Equal(t, "# Servers\n\n| a table | of people |\n\n", above)
	var begins []string
	for _, line := range strings.Split(strings.TrimSpace(below), "\n") {
		begins = append(begins, strings.Join(strings.Fields(line)[:min(4, len(strings.Fields(line)))], " "))
	}
	assert.Equal(t, []string{
		"| server | version", "| --- | ---", "| redis-6.0 | not", "| redis-7.0 | Redis", "| valkey-8.0 | Redis", "",
		"- valkey-8.0: drivers/redigo TestA",
	}, begins)

	bad.tally = &tally{}
	page, err := merge(page, bad)
	require.NoError(t, err)
	assert.NotContains(t, page, "failed", "the note of an earlier run")
	_, err = merge("no marker", bad)
	assert.Error(t, err)
}
