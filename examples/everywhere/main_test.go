package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golocker/locker/internal/testing/natstest"
	"github.com/golocker/locker/internal/testing/redistest"
)

// asProgram is a variable. If it is set, the test binary is the program.
const asProgram = "TEST_AS_EVERYWHERE"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Nothing but LOCKER_URL differs. On stores that other processes see, three processes write into one ledger.
func TestEverywhere(t *testing.T) {
	for name, store := range map[string]struct {
		url       func(t *testing.T) string
		processes int
	}{
		"memory": {func(*testing.T) string { return "memory:" }, 1},
		"Redis":  {func(t *testing.T) string { return "redis://" + redistest.Start(t).Addr() }, 3},
		"Redlock": {func(t *testing.T) string {
			var addrs []string
			for range 3 {
				addrs = append(addrs, redistest.Start(t).Addr())
			}
			return "redlock://" + strings.Join(addrs, ",")
		}, 3},
		"NATS": {func(t *testing.T) string { return natstest.Start(t).URL() }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ledger, url := filepath.Join(t.TempDir(), "ledger"), store.url(t)
			processes := make([]*exec.Cmd, store.processes)
			outputs := make([]strings.Builder, store.processes)
			for i := range processes {
				cmd := exec.CommandContext(t.Context(), os.Args[0], ledger)
				cmd.Env = []string{asProgram + "=1", "LOCKER_URL=" + url}
				cmd.Stdout, cmd.Stderr = &outputs[i], &outputs[i]
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				processes[i] = cmd
			}
			for i, cmd := range processes {
				if err := cmd.Wait(); err != nil || !strings.HasPrefix(outputs[i].String(), "ok: ") {
					t.Errorf("process %d: %v\n%s", i, err, &outputs[i])
				}
			}
			text, err := os.ReadFile(ledger)
			if err != nil {
				t.Fatal(err)
			}
			if n, want := strings.Count(string(text), "\n"), store.processes*workers*entries; n != want {
				t.Errorf("the ledger has %d entries, expected %d", n, want)
			}
		})
	}
}
