package election_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// Five candidates are replaced one after the other, as in a rolling restart. Whenever the leader is, the next one leads
// at that moment.
func TestRollingRestartLeavesNoGap(t *testing.T) {
	withHarness(t, func(o *harness) {
		var all []*candidate
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			all = append(all, o.run(name, nil))
			synctest.Wait()
		}
		for i, c := range all {
			time.Sleep(time.Minute)
			before := len(o.is("elected", ""))
			if _, led := c.Leading(); led {
				at := time.Since(o.begun)
				o.ends(c)
				synctest.Wait()
				o.want("somebody else leads at once", len(o.is("elected", "")) == before+1 && o.last("elected", "").at == at)
			} else {
				o.ends(c)
			}
			all[i] = o.run(c.name+" again", nil)
		}
		o.ends(all...)
		o.want("nothing went wrong", len(o.reported()) == 0)
	})
}
