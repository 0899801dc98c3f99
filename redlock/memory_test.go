package redlock

import (
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker/internal/virtual"
)

// Who locks one key again and again looks whether others wait for it. Who locks many does not: it is in nobody's way, although
// keys share places.
func TestOnlyWhoComesBackLooksForOthers(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var m memory
		one, other := "k", ""
		for i := 0; other == "" || m.place(other) != m.place(one); i++ {
			other = fmt.Sprint(i)
		}
		looks := func(keys ...string) (n int) {
			for range 100 {
				for _, key := range keys {
					if m.contended(key) {
						n++
					}
					time.Sleep(5 * time.Millisecond)
					m.release(key, false)
				}
			}
			return n
		}
		if n := looks(one); n != 4 { // in half a second
			t.Errorf("with one key it looked %d times, want 4", n)
		}
		time.Sleep(time.Second)
		if n := looks(one, other); n != 0 {
			t.Errorf("with two keys of one place it looked %d times", n)
		}
	})
}
