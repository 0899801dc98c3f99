package cli

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
)

// afterRestart says for how long a server that may have forgotten locks should be kept away from clients: as long as
// the restart guard would make it rest.
func (a *app) afterRestart(ctx context.Context, node string, longest time.Duration) error {
	d, err := a.deployment(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	var names []string
	for _, s := range d.Servers {
		names = append(names, s.Name)
	}
	i := slices.IndexFunc(d.Servers, func(s config.Server) bool { return s.Name == node || s.Dial.Addr == node })
	switch {
	case i < 0:
		return exit.Usagef("--after-restart: %q is none of the configured servers: give one of %s", node,
			strings.Join(names, ", "))
	case longest != 0 && (longest < locker.MinTTL || longest > locker.MaxTTL):
		return exit.Usagef("--longest-ttl %v is not from %v to %v", longest, locker.MinTTL, locker.MaxTTL)
	case longest == 0:
		longest = max(d.TTL, d.Guard)
	}
	const startTimeout = 90 * time.Second // systemd's default
	const reserve = 2 * time.Second       // for the granularity of expiry, and for clocks that differ
	out := longest + longest/50 + reserve
	if a.json {
		return a.printJSON(struct {
			Node      string `json:"node"`
			LongestMS int64  `json:"longest_ttl_ms"`
			KeepOutMS int64  `json:"keep_out_ms"`
			Guard     bool   `json:"guard"`
		}{names[i], longest.Milliseconds(), out.Milliseconds(), d.Guard > 0})
	}
	if d.Guard > 0 {
		fmt.Fprintf(a.stdout, "%s needs no delay: with the restart guard of %v it grants no lock for %v\n", names[i],
			d.Guard, d.Guard+d.Guard/50+reserve)
		return nil
	}
	fmt.Fprintf(a.stdout, "keep %s away from clients for %v after it has ended\n", names[i], out)
	// The + is needed where the unit forbids to execute anything but the server, as that of Debian does. systemd ends a
	// start that takes longer than TimeoutStartSec, of which the sleep is a part.
	seconds := math.Ceil(out.Seconds())
	a.note("every lock that it may have forgotten has ended by then, if no lock has a TTL above %v\n"+
		"  with systemd: systemctl edit redis-server, and add\n"+
		"    [Service]\n"+
		"    ExecStartPre=+/bin/sleep %.0f\n"+
		"    TimeoutStartSec=%.0f\n"+
		"  or let a restart guard do it: guard=%v in the URL", longest, seconds, seconds+startTimeout.Seconds(), longest)
	return nil
}
