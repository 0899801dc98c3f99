package lockkube_test

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/golocker/locker/adapters/lockkube"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	log.SetLogger(logr.Discard())
	instance.Main(play)
	redistest.Main(m)
}

// Durations of the electors of instances. They tolerate that a process stands still for two seconds, also when the
// store is down.
var (
	short = times{8 * time.Second, 4 * time.Second, 500 * time.Millisecond}
	// long is for instances that hand on by a release: their lock would outlast the test.
	long = times{10 * time.Minute, 5 * time.Minute, 500 * time.Millisecond}
)

// play is a candidate, with one elector after the other until the test says so. It says when it leads, and with which
// token. args are the URL of the locks, the key, the identity, and the path of a file of which the leader has the lock;
// if that is empty, nobody checks that there is only one. With another argument, the durations are long.
func play(me *instance.Self, args []string) error {
	url, key, identity := args[0], args[1], args[2]
	d := short
	if len(args) > 4 {
		d = long
	}
	l, err := config.Open(context.Background(), url)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	lock, err := lockkube.New(l, key, identity)
	if err != nil {
		return err
	}
	only, err := openJudge(args[3])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		me.Ask("ready")
		only.ended() // the work is over
		cancel()
	}()
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, LeaseDuration: d.lease, RenewDeadline: d.deadline, RetryPeriod: d.retry, ReleaseOnCancel: d == long,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					if err := only.began(); err != nil {
						me.Say("two leaders: %v", err)
						os.Exit(1)
					}
					lease, _ := lock.Lease()
					me.Say("leads %d", lease.Fence())
					if err := lock.AwaitLoss(ctx); err != nil {
						me.Say("lost %v", err)
					}
				},
				OnStoppedLeading: func() {
					only.ended()
					me.Say("stopped")
				},
			},
		})
		if err != nil {
			return err
		}
		elector.Run(ctx)
	}
	me.Say("done")
	return nil
}

// judge is a file that only one process at a time can lock. The kernel unlocks it when the process dies.
type judge struct{ file *os.File }

// openJudge opens the file of a path. If that is empty, the judge judges nothing.
func openJudge(path string) (*judge, error) {
	if path == "" {
		return &judge{}, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	return &judge{f}, err
}

// began returns an error if another process leads.
func (j *judge) began() error {
	if j.file == nil {
		return nil
	}
	if err := syscall.Flock(int(j.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another process leads: %w", err)
	}
	return nil
}

// ended has no effect if this process does not lead.
func (j *judge) ended() {
	if j.file != nil {
		_ = syscall.Flock(int(j.file.Fd()), syscall.LOCK_UN)
	}
}
