package drivers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
)

func TestStaleConnections(t *testing.T) {
	const wrapped = "ERR Error running script (call to f_0123456789abcdef): @user_script:17: @user_script: 17: -"
	for text, stale := range map[string]bool{
		"READONLY You can't write against a read only replica.":                              true,
		wrapped + "READONLY You can't write against a read only replica.":                    true,
		"UNBLOCKED force unblock from blocking operation, instance state changed":            true,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":   true,
		"NOAUTH Authentication required.":                                                    true,
		"NOPERM User locker has no permissions to run the 'publish' command":                 false,
		"OOM command not allowed when used memory > 'maxmemory'.":                            false,
		"ERR unknown command 'READONLY', with args beginning with: READONLY":                 false,
		wrapped + "OOM command not allowed when used memory > 'maxmemory'. script: READONLY": false,
	} {
		refusal := drivers.ServerError(text)
		for _, replies := range [][]drivers.Reply{{refusal}, {"OK", nil, refusal}, {[]drivers.Reply{int64(1), refusal}}} {
			assert.Equal(t, stale, new(drivers.Lifecycle).Stale(replies), fmt.Sprint(replies))
		}
	}
	assert.False(t, new(drivers.Lifecycle).Stale([]drivers.Reply{"READONLY", nil, int64(1), []drivers.Reply{}}))
}

// A driver whose address leads to a replica for good does not reconnect with every call.
func TestStaleAtMostTwiceASecond(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var lc drivers.Lifecycle
		left := 0
		for range 10_000 {
			if lc.Stale([]drivers.Reply{drivers.ServerError("READONLY")}) {
				left++
			}
			time.Sleep(time.Millisecond)
		}
		assert.Equal(t, 20, left, "in ten seconds")
	})
}
