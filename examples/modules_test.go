package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/testing/redistest"
)

// A module of a user takes the library and every nested module from a clone, by one command.
func TestAModuleThatUsesAClone(t *testing.T) {
	needModules(t)
	t.Parallel()
	dir := t.TempDir()
	const program = `package main

import (
	"context"

	_ "github.com/golocker/locker/backends/etcdlock"
	_ "github.com/golocker/locker/backends/natslock"
	_ "github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/valkeydriver"
)

func main() { _, _ = config.Open(context.Background(), "memory:") }
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	script, err := filepath.Abs("../scripts/use-clone")
	require.NoError(t, err)
	for _, args := range [][]string{{"go", "mod", "init", "example.com/app"}, {script}, {"go", "list", "-deps", "."}} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%v\n%s", args, out)
	}
}

// needModules skips a test of other modules than the library's in make test, which is for that module alone. make
// test-all and make test-long run it.
func needModules(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("in make test-all: a test of another module than the library's, whose dependencies take minutes to compile")
	}
}

var building sync.Mutex

// buildModule builds the program in the directory of another module, unless another test has.
func buildModule(t *testing.T, dir string) {
	t.Helper()
	needModules(t)
	building.Lock()
	defer building.Unlock()
	if _, err := os.Stat(filepath.Join(binaries, filepath.Base(dir))); err == nil {
		return
	}
	require.NoError(t, build(dir))
}

func TestCustomDriver(t *testing.T) {
	t.Parallel()
	buildModule(t, "customdriver")
	s := redistest.Start(t, "--requirepass", "hunter2")
	p := start(t, "customdriver", []string{"LOCKER_URL=" + url("plain", s)})
	p.succeeds(t, `^ok: `)
	assert.Len(t, regexp.MustCompile(`(?m)^holding, with fencing token \d+$`).FindAllString(p.stdout.String(), -1), 3)
	for _, n := range []int{1, 3, 5} {
		redlock{driver: "plain", nodes: servers(t, n)}.run(t, "customdriver", "").succeeds(t, `^ok: `)
	}
	start(t, "customdriver", []string{"LOCKER_URL=" + url("goredis", s)}).
		fails(t, `unknown Redis driver "goredis" (registered: plain)`)
}

// TestCustomBackend lets three processes count together.
func TestCustomBackend(t *testing.T) {
	t.Parallel()
	buildModule(t, "custombackend")
	dir := t.TempDir()
	var ps []*program
	for range 3 {
		ps = append(ps, start(t, "custombackend", nil, dir))
	}
	for _, p := range ps {
		p.succeeds(t, `^ok: the counter is \d+$`)
	}
	text, err := os.ReadFile(filepath.Join(dir, "counter"))
	require.NoError(t, err)
	assert.Equal(t, strconv.Itoa(3*20), string(text))
}
