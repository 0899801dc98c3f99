package soak

import (
	"slices"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// permitted is a lease of permits of a program whose limit is 3.
func permitted(name string, fence uint64, began, at, last int64, slots ...int) span {
	s := leased(permit, name, fence, began, at, last)
	s.Slots, s.Weight, s.Limit = slots, len(slots), 3
	return s
}

// limit returns s for a program with another limit.
func (s span) limit(n int) span {
	s.Limit = n
	return s
}

// wants returns s for a call that has asked for another number of permits.
func (s span) wants(n int) span {
	s.Weight = n
	return s
}

// of returns s as made of another lease by Upgrade or Downgrade.
func (s span) of(from string) span {
	s.From = from
	return s
}

// The judge notices each fault of permits, and nothing where there is none.
func TestJudgeFindsPlantedFaultsOfPermits(t *testing.T) {
	three := []bound{{0, 3}}
	lowered := []bound{{0, 5}, {50, 3}}
	a, b, c := permitted("1", 1, 1, 10, 60, 0), permitted("2", 2, 1, 20, 60, 1), permitted("3", 3, 1, 30, 60, 2)
	for name, h := range map[string]history{
		"all of them": {spans: []span{a, b, c}, bounds: three},
		"one more": {
			spans: []span{a, b, c, permitted("4", 4, 1, 59, 70, 3).limit(4)}, bounds: three, found: "4 permits",
		},
		"one in turn":  {spans: []span{a, b, c, permitted("4", 4, 1, 60, 70, 3).limit(4)}, bounds: three},
		"one too late": {spans: []span{a, b, c, permitted("4", 4, 1, 59, 0, 3).limit(4)}, bounds: three},
		"two more": {
			spans: []span{a, b, permitted("4", 4, 1, 59, 70, 2, 3).limit(4)}, bounds: three, found: "4 permits",
		},
		"a permit twice": {spans: []span{a, permitted("2", 2, 1, 59, 70, 0)}, found: "permit 0: {has permit"},
		"one of several twice": {
			spans: []span{a, permitted("2", 2, 1, 59, 70, 1, 0)}, found: "permit 0: {has permit",
		},
		"one of another program":   {spans: []span{permitted("1", 1, 1, 10, 20, 3)}, found: "not one of the program's"},
		"fewer than asked for":     {spans: []span{a.wants(2)}, found: "as many permits as"},
		"a limit that was lowered": {spans: []span{a, b, c}, bounds: lowered},
		"too many held for a new limit": {
			spans:  []span{a, b, c, permitted("4", 4, 1, 40, 51, 3).limit(5)},
			bounds: lowered, found: "4 permits were held at 50",
		},
		"as many held until then": {spans: []span{a, b, c, permitted("4", 4, 1, 40, 50, 3).limit(5)}, bounds: lowered},
		"a token falls":           {spans: []span{b, permitted("4", 1, 21, 70, 0, 1)}, found: "not greater"},
		"a token falls from holder to holder": {
			spans: []span{b, permitted("4", 1, 1, 70, 80, 1)}, found: "was relied on after",
		},
		"a token falls for one of several": {
			spans: []span{b, permitted("4", 1, 21, 70, 0, 0, 1)}, found: "permit 1: the token",
		},
		"a token twice":         {spans: []span{b, permitted("4", 2, 1, 70, 0, 1)}, found: "have one token"},
		"tokens of two permits": {spans: []span{b, permitted("4", 1, 21, 70, 80, 2)}},
		"a wrong certificate": {
			spans: []span{a.sure(60), permitted("2", 2, 1, 59, 0, 0)}, found: "was verified",
		},
		"a certificate of another permit": {spans: []span{a.sure(60), permitted("2", 2, 1, 59, 0, 1)}},
	} {
		t.Run(name, h.test)
	}
}

// The judge notices each fault of readers and writers, and nothing where there is none.
func TestJudgeFindsPlantedFaultsOfReadersAndWriters(t *testing.T) {
	reads, writes := leased(shared, "1", 5, 10, 20, 30), leased(exclusive, "1", 5, 10, 20, 30)
	mayWrite := leased(upgradeable, "1", 5, 10, 20, 30)
	upgraded, downgraded := leased(exclusive, "2", 8, 31, 40, 50).of("1"), leased(shared, "2", 5, 31, 40, 50).of("1")
	for name, h := range map[string]history{
		"readers": {
			spans: []span{reads, leased(shared, "2", 5, 10, 25, 35), leased(shared, "3", 4, 10, 26, 35)},
		},
		"a reader that can write": {spans: []span{mayWrite, leased(shared, "2", 4, 10, 25, 35)}},
		"two that can write": {
			spans: []span{mayWrite, leased(upgradeable, "2", 6, 10, 25, 35)}, found: "was relied on",
		},
		"a writer in turn":         {spans: []span{reads, leased(exclusive, "2", 6, 10, 30, 35)}},
		"a writer beside a reader": {spans: []span{reads, leased(exclusive, "2", 6, 10, 29, 35)}, found: "was relied on"},
		"a writer beside a reader, with another reader between": {
			spans: []span{reads, leased(shared, "2", 5, 10, 22, 23), leased(exclusive, "3", 6, 10, 29, 35)},
			found: "was relied on",
		},
		"a reader beside a writer": {spans: []span{writes, leased(shared, "2", 6, 10, 29, 35)}, found: "was relied on"},
		"two writers":              {spans: []span{writes, leased(exclusive, "2", 6, 10, 29, 35)}, found: "was relied on"},
		"a writer beside one that can write": {
			spans: []span{mayWrite, leased(exclusive, "2", 6, 10, 29, 35)}, found: "was relied on",
		},
		"a writer too late": {spans: []span{reads, leased(exclusive, "2", 6, 10, 29, 0)}},

		"a writer's token after a reader's": {
			spans: []span{reads, leased(exclusive, "2", 4, 10, 31, 35)}, found: "was relied on after",
		},
		"a writer's token after that of a reader whose time is over": {
			spans: []span{leased(shared, "1", 5, 10, 20, 0), leased(exclusive, "2", 4, 21, 31, 0)}, found: "not greater",
		},
		"a writer's token after a writer's": {
			spans: []span{writes, leased(exclusive, "2", 4, 10, 31, 35)}, found: "was relied on after",
		},
		"a reader's token after a writer's": {
			spans: []span{writes, leased(shared, "2", 4, 10, 31, 35)}, found: "was relied on after",
		},
		"a reader's token after a writer's, with another reader between": {
			spans: []span{writes, leased(shared, "2", 6, 10, 31, 35), leased(shared, "3", 4, 10, 32, 35)},
			found: "was relied on after",
		},
		"a reader's token after that of a writer whose time is over": {
			spans: []span{leased(exclusive, "1", 5, 10, 20, 0), leased(shared, "2", 4, 21, 31, 0)}, found: "not greater",
		},
		"a reader's token after a reader's": {spans: []span{reads, leased(shared, "2", 4, 21, 31, 35)}},
		"a writer's token is a reader's": {
			spans: []span{leased(shared, "1", 5, 10, 20, 0), leased(exclusive, "2", 5, 10, 21, 0)}, found: "have one token",
		},

		"an upgrade":        {spans: []span{mayWrite, upgraded}},
		"a downgrade":       {spans: []span{writes, downgraded}},
		"another downgrade": {spans: []span{mayWrite, downgraded}},
		"both": {
			spans: []span{mayWrite, upgraded, leased(shared, "3", 8, 51, 60, 70).of("2")},
		},
		"readers in between": {spans: []span{mayWrite, leased(shared, "3", 6, 10, 31, 39), upgraded}},
		"a writer in an upgrade": {
			spans: []span{mayWrite, leased(exclusive, "3", 7, 10, 31, 39), upgraded}, found: "was relied on between",
		},
		"a writer in a downgrade": {
			spans: []span{writes, leased(exclusive, "3", 7, 10, 31, 39), downgraded}, found: "was relied on between",
		},
		"a writer in a downgrade after an upgrade": {
			spans: []span{mayWrite, upgraded, leased(exclusive, "4", 9, 51, 52, 55), leased(shared, "3", 8, 51, 60, 70).of("2")},
			found: "was relied on between",
		},
		"a writer after it was lost": {
			spans: []span{mayWrite, leased(exclusive, "3", 7, 10, 31, 39), leased(exclusive, "2", 8, 31, 40, 0).of("1")},
		},
		"a writer beside one that was upgraded": {
			spans: []span{mayWrite, upgraded, leased(shared, "3", 9, 10, 45, 55)}, found: "was relied on until",
		},
		"a token that an upgrade keeps": {
			spans: []span{mayWrite, leased(exclusive, "2", 5, 31, 40, 50).of("1")}, found: "not greater",
		},
		"a token that a downgrade changes": {
			spans: []span{writes, leased(shared, "2", 6, 31, 40, 50).of("1")}, found: "is not that of",
		},

		"a wrong certificate of a reader": {
			spans: []span{leased(shared, "1", 5, 10, 20, 0).sure(30), leased(exclusive, "2", 6, 10, 29, 0)},
			found: "was verified",
		},
		"a wrong certificate of a writer": {
			spans: []span{leased(exclusive, "1", 5, 10, 20, 0).sure(30), leased(shared, "2", 6, 10, 29, 0)},
			found: "was verified",
		},
		"a right certificate": {spans: []span{reads.sure(30), leased(shared, "2", 6, 10, 29, 0)}},
	} {
		t.Run(name, h.test)
	}
}

// Only an upgradeable lease that was upgraded, downgraded, and relied on all the time counts as a cycle.
func TestJudgeCountsCycles(t *testing.T) {
	first, second := leased(upgradeable, "1", 5, 10, 20, 30), leased(exclusive, "2", 8, 31, 40, 50).of("1")
	third := leased(shared, "3", 8, 51, 60, 70).of("2")
	for name, tt := range map[string]struct {
		spans []span
		want  int
	}{
		"a cycle":                   {[]span{first, second, third}, 1},
		"an upgrade":                {[]span{first, second}, 0},
		"a downgrade":               {[]span{first, leased(shared, "3", 5, 51, 60, 70).of("1")}, 0},
		"of a writer":               {[]span{leased(exclusive, "2", 8, 31, 40, 50), third}, 0},
		"lost as a writer":          {[]span{first, leased(exclusive, "2", 8, 31, 40, 0).of("1"), third}, 0},
		"lost with the downgrade":   {[]span{first, second, leased(shared, "3", 8, 51, 60, 0).of("2")}, 0},
		"of a lease of another key": {[]span{first, second.on("l"), third}, 0},
	} {
		j := newJudge()
		for _, s := range tt.spans {
			j.add(s)
		}
		if got := j.cycles(); got != tt.want {
			t.Errorf("%s: %d cycles, expected %d", name, got, tt.want)
		}
	}
}

func TestTimesWithoutOutages(t *testing.T) {
	all := stretch{10, 20}
	for name, tt := range map[string]struct{ outages, want []stretch }{
		"none":             {nil, []stretch{all}},
		"before":           {[]stretch{{1, 5}}, []stretch{all}},
		"at the beginning": {[]stretch{{1, 12}}, []stretch{{12, 20}}},
		"in between":       {[]stretch{{12, 14}, {16, 17}}, []stretch{{10, 12}, {14, 16}, {17, 20}}},
		"one in another":   {[]stretch{{11, 18}, {12, 14}}, []stretch{{10, 11}, {18, 20}}},
		"at the end":       {[]stretch{{15, 30}, {30, 40}}, []stretch{{10, 15}}},
		"all the time":     {[]stretch{{10, 15}, {15, 20}}, nil},
	} {
		if got := without(all, tt.outages); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, expected %v", name, got, tt.want)
		}
	}
}

// A lock that is left behind is noticed.
func TestLocksLeftBehindAreNoticed(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		l := locker.NewClient(memory.NewBackend())
		lease, err := l.Lock(t.Context(), "a", locker.TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		if err := allFree(t.Context(), l, []string{"b", "a"}); err == nil {
			t.Error("nothing is left while a lock is held")
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := allFree(t.Context(), l, []string{"b", "a"}); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}
