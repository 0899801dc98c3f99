package fences_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golocker/locker/fence"
)

// The SQL of docs/fencing.md for the shell.
func TestPageForTheShell(t *testing.T) {
	page, err := os.ReadFile("../../../docs/fencing.md")
	must(t, err)
	_, shell, _ := strings.Cut(string(page), "## By the shell\n")
	_, script, _ := strings.Cut(shell, "```sql\n")
	script, _, _ = strings.Cut(script, "```")
	file := filepath.Join(t.TempDir(), "pay.sql")
	must(t, os.WriteFile(file, []byte(script), 0o600))
	d := postgres(t)
	db := d.open(t, fence.SQL{Dialect: d.dialect})
	for _, step := range []struct {
		token string
		paid  bool
	}{{"5", true}, {"7", true}, {"6", false}, {"7", true}} {
		psql := exec.Command("psql", d.source, "-v", "ON_ERROR_STOP=1", "-v", "fence="+step.token, "-f", file)
		out, err := psql.CombinedOutput()
		if (err == nil) != step.paid || (err != nil && !strings.Contains(string(out), "division by zero")) {
			t.Errorf("%s: %v: %s", step.token, err, out)
		}
	}
	balanceIs(t, db, 30)
}
