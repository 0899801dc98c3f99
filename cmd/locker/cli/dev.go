package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alicebob/miniredis/v2"
	"github.com/spf13/cobra"

	"github.com/golocker/locker/cmd/locker/internal/exit"
)

const maxDevNodes = 9

func devCommand(a *app) *cobra.Command {
	var nodes int
	var embedded bool
	cmd := &cobra.Command{
		Use:     "dev",
		GroupID: groupOther,
		Short:   "Run throw-away servers to try things out, until Ctrl-C",
		Long: `Dev starts a Redis server on a free port of the loopback interface and prints the LOCKER_URL for it or,
with --nodes, that of a Redlock over as many servers. The servers are redis-server processes that persist every write,
so that locker doctor finds no fault. Kill one of them, or stop it with kill -STOP, and see what happens. When locker
dev ends, for any reason, the servers end as well and their files are removed.

If redis-server is not installed, or with --embedded, dev simulates the servers inside its own process. They have no
roles, no persistence and no memory limit, cannot hang one by one, and differ slightly in timing.`,
		Example: `  locker dev
  locker dev --nodes 3 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if nodes < 1 || nodes > maxDevNodes {
				return exit.Usagef("--nodes %d is not a number from 1 to %d", nodes, maxDevNodes)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			return a.dev(ctx, nodes, embedded)
		},
	}
	cmd.Flags().IntVar(&nodes, "nodes", 1, "how many servers")
	cmd.Flags().BoolVar(&embedded, "embedded", false,
		"simulate the servers in this process, even if redis-server is installed")
	return cmd
}

// devNode is one throw-away server.
type devNode struct {
	addr string
	pid  int             // 0: simulated in this process
	gone <-chan struct{} // closed when it has ended by itself
	stop func()          // ends the server and removes its files
}

func (a *app) dev(ctx context.Context, n int, embedded bool) error {
	binary, err := exec.LookPath("redis-server")
	if err != nil && !embedded {
		a.note("redis-server is not installed: the servers are simulated, without persistence, roles and memory limits")
		embedded = true
	}
	start := func() (*devNode, error) { return startRedis(ctx, binary) }
	if embedded {
		start = startEmbedded
	}
	var nodes []*devNode
	defer func() {
		for _, node := range nodes {
			node.stop()
		}
	}()
	for range n {
		node, err := start()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return exit.With(exit.OSErr, err, "try --embedded")
		}
		nodes = append(nodes, node)
	}
	if err := a.announce(nodes, embedded); err != nil {
		return err
	}
	for _, node := range nodes {
		go func() {
			select {
			case <-node.gone:
				a.note("%s has ended", node.addr)
			case <-ctx.Done():
			}
		}()
	}
	<-ctx.Done()
	return nil
}

func (a *app) announce(nodes []*devNode, embedded bool) error {
	type nodeJSON struct {
		Addr string `json:"addr"`
		PID  int    `json:"pid,omitempty"`
	}
	var list []nodeJSON
	for _, n := range nodes {
		list = append(list, nodeJSON{n.addr, n.pid})
	}
	url := urlOf(nodes)
	if a.json {
		return a.printJSON(struct {
			URL      string     `json:"url"`
			Embedded bool       `json:"embedded,omitempty"`
			Nodes    []nodeJSON `json:"nodes"`
		}{url, embedded, list})
	}
	fmt.Fprintln(a.stdout, "export LOCKER_URL="+url)
	if !embedded {
		for _, n := range nodes {
			a.note("%s is process %d", n.addr, n.pid)
		}
	}
	a.note("paste the line above into another terminal, then try:\n" +
		"  locker run --key demo -- sleep 60\n" +
		"  locker inspect demo\n" +
		"  locker doctor\n" +
		"Ctrl-C ends all of it")
	return nil
}

// urlOf returns the URL of a Redlock, or of one Redis.
func urlOf(nodes []*devNode) string {
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.addr)
	}
	if len(addrs) == 1 {
		return "redis://" + addrs[0]
	}
	return "redlock://" + strings.Join(addrs, ",")
}

// startEmbedded starts a simulated server.
func startEmbedded() (*devNode, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true) // keys expire as time passes
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return nil, err
	}
	return &devNode{addr: m.Addr(), stop: m.Close}, nil
}

var errNotUp = errors.New("redis-server does not answer")
