package lockkube_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/golocker/locker/adapters/lockkube"
	"github.com/golocker/locker/memory"
)

// Other tests are in internal/testing/adapters, because they need other modules.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ExampleLock() {
	l := memory.New() // or config.Open with a URL, which all candidates share
	defer l.Close()

	lock, err := lockkube.New(l, "my-operator", "my-operator-x2x8z") // the name of the pod
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ReleaseOnCancel: true, // the work has ended when stop is called
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				ctx, cancel := context.WithCancelCause(ctx) // of the work; ends after a loss
				go func() { cancel(lock.AwaitLoss(ctx)) }()
				fmt.Println("leads:", ctx.Err() == nil)
				stop()
			},
			OnStoppedLeading: func() { fmt.Println("stopped") },
		},
	})
	if err != nil {
		panic(err)
	}
	elector.Run(ctx)
	// Output:
	// leads: true
	// stopped
}
