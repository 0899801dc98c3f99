package elections

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	_ "github.com/golocker/locker/backends/etcdlock"
	_ "github.com/golocker/locker/backends/natslock"
	_ "github.com/golocker/locker/drivers/all"
	_ "github.com/golocker/locker/drivers/valkeydriver"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/trials/everystore/deployment"
)

// The test binary is also the program of the candidates in other processes.
func TestMain(m *testing.M) {
	if os.Getenv(planEnv) != "" {
		campaignHere()
		return
	}
	goleak.VerifyTestMain(m, redistest.Lingering()...)
}

const (
	// termsEnv is how many terms TestElections has on each deployment. Without it, there are few, on two deployments.
	termsEnv = "LOCKER_ELECTIONS"
	// onlyEnv selects deployments by a part of their names.
	onlyEnv = "LOCKER_ELECTIONS_ONLY"
)

// brief has the deployments that are tried in each test.
var brief = map[string]bool{"memory": true, "single, goredis": true}

// beside is the number of deployments that run at the same time. They mostly wait.
const beside = 4

// Terms grow, and no two candidates lead at once, however leaders end: on each backend, and with each driver.
func TestElections(t *testing.T) {
	terms, all := 0, os.Getenv(termsEnv)
	if all != "" {
		var err error
		if terms, err = strconv.Atoi(all); err != nil {
			t.Fatal(err)
		}
	}
	run := newReport(t)
	gate := make(chan struct{}, beside)
	var wg sync.WaitGroup
	for _, d := range deployment.All {
		if all == "" && !brief[d.Name] || !strings.Contains(d.Name, os.Getenv(onlyEnv)) {
			continue
		}
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			t.Run(d.Name, func(t *testing.T) {
				election, bare := play(t, d, terms)
				run.add(d, election, bare)
			})
		})
	}
	wg.Wait()
	run.finish(t, all)
}
