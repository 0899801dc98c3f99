//go:build unix

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
)

// TestTheNextStepFitsTheDeployment checks the advice after an error of sentinels, of a cluster, and of servers that are
// not what the URL says.
func TestTheNextStepFitsTheDeployment(t *testing.T) {
	t.Parallel()
	watched := func(master *redistest.Server) string {
		return redistest.StartSentinels(t, 1, time.Minute, master)[0].Addr()
	}
	a, one := redistest.NewAuthority(t), redistest.Start(t)
	s, locked := watched(one), watched(redistest.Start(t, "--requirepass", "right"))
	secure := watched(a.Start(t, "--tls-replication", "yes"))
	c := redistest.StartCluster(t, 2, false).Addrs()[0]
	secureCluster := a.StartCluster(t, 1, false).Addrs()[0]
	wrong := filepath.Join(t.TempDir(), "wrong")
	require.NoError(t, os.WriteFile(wrong, []byte("wrong\n"), 0o600))
	const closed = "127.0.0.1:1"
	for name, tt := range map[string]struct{ url, next string }{
		"another name of the master": {"redis+sentinel://" + s + "/other",
			"SENTINEL MASTERS on a sentinel lists"},
		"a server as a sentinel": {"redis+sentinel://" + one.Addr() + "/master",
			"give the addresses of the sentinels"},
		"a sentinel as a server":       {"redis://" + s, "write redis+sentinel://host:26379/mymaster"},
		"no sentinel":                  {"redis+sentinel://" + closed + "/master", "start the sentinels"},
		"no password of the sentinels": {"redis+sentinel://" + locked + "/master", "sentinel_password_file"},
		"wrong one": {"redis+sentinel://" + locked + "/master?sentinel_password_file=" + wrong,
			"sentinel_password_file"},
		"wrong password of the master": {"redis+sentinel://u:p@" + s + "/master",
			`check the password of user "u"`},
		"TLS to sentinels without": {"rediss+sentinel://" + s + "/master?timeout=300ms",
			"write redis+sentinel:// instead"},
		"plain to sentinels with TLS": {"redis+sentinel://" + secure + "/master",
			"write rediss+sentinel:// instead"},
		"no CA of the sentinels":        {"rediss+sentinel://" + secure + "/master", "as tls_ca_file"},
		"a server as a cluster":         {"redis+cluster://" + one.Addr(), "write redis:// for one server"},
		"a node of a cluster as server": {"redis://" + c, "write redis+cluster://"},
		"no node":                       {"redis+cluster://" + closed, "start redis-server, or correct host and port"},
		"wrong password of the cluster": {"redis+cluster://u:p@" + c, `check the password of user "u"`},
		"TLS to a cluster without": {"rediss+cluster://" + c + "?timeout=300ms",
			"write redis+cluster:// instead"},
		"plain to a cluster with TLS": {"redis+cluster://" + secureCluster, "write rediss+cluster:// instead"},
		"no CA of the cluster":        {"rediss+cluster://" + secureCluster, "as tls_ca_file"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, driver := range short.Part(t, 1, drivers.Reaching(drivers.RedisCluster)) {
				scheme, rest, _ := strings.Cut(tt.url, "://")
				// One of the keys is not on the first node of the cluster.
				code, _, stderr := callAgain([]string{"LOCKER_URL=" + scheme + "+" + driver + "://" + rest},
					"run", "-k", "a", "-k", "b", "-k", "c", "-k", "d", "--wait", "0", "--", "true")
				assert.Equal(t, exit.Unavailable, code, driver)
				assert.Contains(t, stderr, tt.next, driver)
			}
		})
	}
}
