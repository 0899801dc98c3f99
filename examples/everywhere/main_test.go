package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/internal/testing/storeurl"
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

// migrate does what locker migrate does.
func migrate(tb testing.TB, url string) {
	db, err := pgx.Connect(tb.Context(), url)
	if err == nil {
		_, err = postgreslock.Migrate(tb.Context(), db)
	}
	if err != nil {
		tb.Fatal(err)
	}
	_ = db.Close(tb.Context())
}

// Nothing but LOCKER_URL differs. On stores that other processes see, three processes write into one ledger.
func TestEverywhere(t *testing.T) {
	for name, start := range storeurl.Start(migrate) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ledger, url := filepath.Join(t.TempDir(), "ledger"), start(t)
			processes := make([]*exec.Cmd, 3)
			if name == storeurl.Memory {
				processes = processes[:1]
			}
			outputs := make([]strings.Builder, len(processes))
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
			if n, want := strings.Count(string(text), "\n"), len(processes)*workers*entries; n != want {
				t.Errorf("the ledger has %d entries, expected %d", n, want)
			}
		})
	}
}
