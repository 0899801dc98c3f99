package mariadbtest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golocker/locker/internal/testing/testserver"
)

// provider is the library that makes a server a node of a cluster, where packages of distributions have it.
var provider = []string{"/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so"}

// Cluster starts n servers that are a Galera cluster: each takes writes, and has the data of all. settings are those of
// each server, as with [Start]. A server that has started may not have found the others yet, and refuse requests.
//
// All begin with the files of a cluster that has lost its power: they find each other, and none needs a copy of the
// data of another one, for which each would have to start rsync.
func Cluster(tb testing.TB, n int, settings ...string) []*Server {
	tb.Helper()
	library := ""
	for _, path := range provider {
		if _, err := os.Stat(path); err == nil {
			library = path
		}
	}
	if library == "" {
		tb.Fatalf("this test needs Galera 4, and there is none of %s: install it (apt-get install -y galera-4)",
			strings.Join(provider, ", "))
	}
	listens, members := make([]string, n), ""
	for i := range listens {
		listens[i] = testserver.FreeAddr(tb)
		members += "member: " + id(i+1) + " 0\n"
	}
	nodes := make([]*Server, n)
	for i := range nodes {
		_, port, _ := net.SplitHostPort(listens[i])
		s := prepare(tb, append([]string{
			"wsrep-on=ON", "wsrep-provider=" + library, "wsrep-cluster-name=test",
			"wsrep-cluster-address=gcomm://" + strings.Join(listens, ","), "wsrep-node-address=127.0.0.1",
			"wsrep-sst-method=skip", "binlog-format=ROW", "innodb-autoinc-lock-mode=2",
			"wsrep-provider-options=base_port=" + port + ";gmcast.listen_addr=tcp://" + listens[i] + ";ist.recv_addr=" +
				testserver.FreeAddr(tb) + ";gcache.size=1M",
		}, settings...)...)
		s.put(filepath.Join("data", "grastate.dat"), []byte("# GALERA saved state\nversion: 2.1\nuuid:    "+id(0)+
			"\nseqno:   0\nsafe_to_bootstrap: 0\n"))
		s.put(filepath.Join("data", "gvwstate.dat"), []byte("my_uuid: "+id(i+1)+"\n#vwbeg\nview_id: 3 "+id(1)+
			" 1\nbootstrap: 0\n"+members+"#vwend\n"))
		s.run()
		nodes[i] = s
	}
	for _, s := range nodes {
		s.await()
	}
	return nodes
}

// id returns the name of a node, or of the cluster.
func id(n int) string { return fmt.Sprintf("a14b5a%02x-0000-11f0-8000-3f6c1d2e4b5a", n) }
