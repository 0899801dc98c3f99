package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golocker/locker/cmd/locker/cli"
)

const asLocker = "TEST_AS_LOCKER"

// The test binary is also the program.
func TestMain(m *testing.M) {
	if os.Getenv(asLocker) != "" {
		cli.Main()
	}
	os.Exit(m.Run())
}

func command(env []string, args ...string) (string, error) {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append([]string{asLocker + "=1", "PATH=" + os.Getenv("PATH")}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestThreeWays checks that the command finds the store by URL, in a file and in the environment, and explains a
// mistake in each.
func TestThreeWays(t *testing.T) {
	dir := t.TempDir()
	db, yaml, bad := filepath.Join(dir, "locks.db"), filepath.Join(dir, "locker.yaml"), filepath.Join(dir, "bad.yaml")
	for path, text := range map[string]string{
		yaml: "backend: bolt\nttl: 5s\nbolt:\n  path: " + db + "\n  poll: 2ms\n",
		bad:  "backend: bolt\nbolt:\n  path: locks.db\n  pol: 2ms\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inURL := []string{"--url", "bolt://" + db + "?poll=2ms"}
	inEnv := []string{"LOCKER_BACKEND=bolt", "LOCKER_BOLT_PATH=" + db}
	for name, way := range map[string]struct{ env, args []string }{
		"URL": {args: inURL}, "file": {args: []string{"--config", yaml}}, "environment": {env: inEnv},
	} {
		run := append(append([]string{"run"}, way.args...), "--key", "k", "--",
			"sh", "-c", `echo "$LOCKER_STORE, $LOCKER_KEY"; [ "$LOCKER_FENCE" -gt 0 ]`)
		if out, err := command(way.env, run...); err != nil || out != "bolt, k\n" {
			t.Errorf("locker run by %s: %v, %s", name, err, out)
		}
		out, err := command(way.env, append(way.args, "config", "check")...)
		if err != nil || !strings.HasPrefix(out, "ok: bolt://"+db) {
			t.Errorf("locker config check by %s: %v, %s", name, err, out)
		}
	}
	for name, way := range map[string]struct {
		env, args []string
		want      string
	}{
		"URL": {args: []string{"--url", "bolt://locks.db?pol=2ms"},
			want: `unknown parameter "pol": did you mean poll?`},
		"file": {args: []string{"--config", bad},
			want: `bad.yaml:4: bolt: unknown field "pol": did you mean poll?`},
		"environment": {env: append(inEnv, "LOCKER_BOLT_POL=1ms"),
			want: `"LOCKER_BOLT_POL": did you mean LOCKER_BOLT_POLL?`},
	} {
		out, err := command(way.env, append(way.args, "config", "check")...)
		if err == nil || !strings.Contains(out, way.want) {
			t.Errorf("a mistake in the %s: %v, %s", name, err, out)
		}
	}
	out, err := command(nil, append(inURL, "doctor")...)
	if err != nil || !strings.Contains(out, "waiters look at intervals") {
		t.Errorf("locker doctor: %v, %s", err, out)
	}
}

// TestTwoCommandsExcludeEachOther checks that the second command finds the lock held, and ends with the exit code for
// that.
func TestTwoCommandsExcludeEachOther(t *testing.T) {
	url := "bolt://" + filepath.Join(t.TempDir(), "locks.db")
	self := os.Args[0]
	inner := self + " run --url " + url + " --key k --wait 0 -- true"
	_, err := command(nil, "run", "--url", url, "--key", "k", "--", "sh", "-c", asLocker+"=1 "+inner)
	exit, ok := err.(*exec.ExitError)
	if !ok || exit.ExitCode() != 75 {
		t.Errorf("a second command for the same lock: %v, expected exit code 75", err)
	}
	out, err := command(nil, "run", "--url", url+"?prefix=other:", "--key", "k", "--wait", "0", "--", "true")
	if err != nil {
		t.Errorf("after that: %v, %s", err, out)
	}
}

// TestConform checks that the command runs the conformance suites on the store. On a busy machine, properties in real
// time may fail; package boltlock runs the suites in virtual time.
func TestConform(t *testing.T) {
	dir := t.TempDir()
	if _, err := os.Stat("/dev/shm"); err == nil { // a disk would take most of the time
		if dir, err = os.MkdirTemp("/dev/shm", "locker"); err != nil { //nolint:usetesting // in memory
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	out, _ := command(nil, "conform", "--url", "bolt://"+filepath.Join(dir, "locks.db"))
	for _, property := range []string{"MutualExclusion", "LabelNamesTheHolder", "PermitsAreLimited", "LimitsMayDiffer"} {
		if !strings.Contains(out, "pass  "+property+" ") {
			t.Errorf("%s does not hold:\n%s", property, out)
		}
	}
}
