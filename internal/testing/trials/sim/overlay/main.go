// Overlay writes copies of four files of the Go runtime in which what is random inside a bubble follows from a seed,
// and an overlay.json for "go build -overlay" that puts them in place: which case of a select is taken, the order of
// timers that are due at once, the order of maps, and math/rand/v2. Goroutines are not preempted. Nothing of the
// installed Go is changed. It fails if the runtime does not look as expected; then simulations work without it, and a
// seed fixes less.
//
// Rejected: sources of randomness to be passed in from outside, all through the library, which would fix only
// math/rand; and a patched Go beside the installed one.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// generator is splitmix64. Bubbles of simulations run on one processor, so it needs no lock.
const generator = `
var simState uint64

// SimSeed makes what happens in bubbles from now on follow from seed; 0 ends that.
func SimSeed(seed uint64) { simState = seed }

//go:nosplit
func simRand() uint64 {
	simState += 0x9e3779b97f4a7c15
	z := simState
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

func simRandn(n uint32) uint32 {
	if simState != 0 && getg().bubble != nil {
		return uint32(simRand() % uint64(n))
	}
	return cheaprandn(n)
}
`

var patches = []struct{ file, before, after, more string }{
	{"rand.go", "	mp := getg().m\n	c := &mp.chacha8\n",
		"	if simState != 0 && getg().bubble != nil {\n		return simRand()\n	}\n	mp := getg().m\n	c := " +
			"&mp.chacha8\n", generator},
	{"select.go", "j := cheaprandn(uint32(norder + 1))", "j := simRandn(uint32(norder + 1))", ""},
	{"time.go", "t.rand = cheaprand()",
		"t.rand = cheaprand()\n			if simState != 0 {\n				t.rand = uint32(simRand())\n			}",
		""},
	// A goroutine goes on until it waits for something, also where the machine is so busy that that takes long.
	{"proc.go", "const forcePreemptNS = 10 * 1000 * 1000", "const forcePreemptNS = 1000 * 1000 * 1000 * 1000", ""},
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: overlay DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "overlay:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	replace := map[string]string{}
	for _, p := range patches {
		from := filepath.Join(strings.TrimSpace(string(root)), "src", "runtime", p.file)
		to, err := filepath.Abs(filepath.Join(dir, p.file))
		if err != nil {
			return err
		}
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if n := strings.Count(string(text), p.before); n != 1 {
			return fmt.Errorf("%s has %q %d times, not once", from, p.before, n)
		}
		if err := os.WriteFile(to, []byte(strings.Replace(string(text), p.before, p.after, 1)+p.more),
			0o600); err != nil {
			return err
		}
		replace[from] = to
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600)
}
