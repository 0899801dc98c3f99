package lockkube_test

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/golocker/locker/adapters/lockkube"
	"github.com/golocker/locker/memory"
)

func Example() {
	l := memory.New() // or config.Open with a URL, which all candidates share
	defer l.Close()

	lock := lockkube.New(l, "my-operator", "")
	config := &rest.Config{Host: "http://127.0.0.1:1"} // or that of the cluster
	mgr, err := manager.New(config, manager.Options{
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,                              // the program exits when Start has returned
		Metrics:                             metrics.Options{BindAddress: "0"}, // none
	})
	if err != nil {
		panic(err)
	}
	if err := mgr.Add(manager.RunnableFunc(lock.AwaitLoss)); err != nil { // ends Start after a loss
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	work := func(ctx context.Context) error { // or controllers
		lease, leads := lock.Lease()
		fmt.Println("leads:", leads, "with a token:", lease.Fence() > 0)
		stop()
		<-ctx.Done()
		return nil
	}
	if err := mgr.Add(manager.RunnableFunc(work)); err != nil {
		panic(err)
	}
	fmt.Println(mgr.Start(ctx))
	// Output:
	// leads: true with a token: true
	// <nil>
}

func ExampleLock() {
	l := memory.New() // or config.Open with a URL, which all candidates share
	defer l.Close()

	lock := lockkube.New(l, "my-operator", "my-operator-x2x8z") // the name of the pod
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
