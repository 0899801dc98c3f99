package contention

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSiegeIsJudged(t *testing.T) {
	began := time.Now()
	hold := func(key string, fence uint64, from, to int) Hold {
		return Hold{0, key, fence, began.Add(time.Duration(from)), began.Add(time.Duration(to))}
	}
	for name, test := range map[string]struct {
		holds             []Hold
		double, backwards int
	}{
		"one after the other":                  {[]Hold{hold("a", 2, 5, 9), hold("a", 1, 0, 5), hold("b", 1, 0, 9)}, 0, 0},
		"two at once":                          {[]Hold{hold("a", 1, 0, 6), hold("a", 2, 5, 9)}, 1, 0},
		"a long one beside several":            {[]Hold{hold("a", 1, 0, 9), hold("a", 2, 1, 2), hold("a", 3, 4, 5)}, 2, 0},
		"a token that is less":                 {[]Hold{hold("a", 2, 0, 5), hold("a", 1, 6, 9)}, 0, 1},
		"a token that is the same":             {[]Hold{hold("a", 2, 0, 5), hold("a", 2, 6, 9)}, 0, 1},
		"an answer that came after the end":    {[]Hold{hold("a", 2, 0, 9), hold("a", 1, 5, 4)}, 0, 0},
		"a token less than that of a long one": {[]Hold{hold("a", 5, 0, 9), hold("a", 6, 1, 2), hold("a", 5, 9, 10)}, 1, 1},
	} {
		double, backwards := (&Siege{TB: t, holds: test.holds}).Judge()
		assert.Len(t, double, test.double, name)
		assert.Len(t, backwards, test.backwards, name)
	}
}
