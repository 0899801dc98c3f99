package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pinned is an action of somebody else, by the hash of a commit and the version that it is: a tag can be moved.
var pinned = regexp.MustCompile(`^[\w.-]+(/[\w.-]+)+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)

// lax returns what a workflow allows without need.
func lax(workflow string) (wrong []string) {
	if !strings.Contains(workflow, "\npermissions:\n  contents: read\njobs:\n") {
		wrong = append(wrong, "the workflow has other permissions than to read the contents")
	}
	for line := range strings.Lines(workflow) {
		line = strings.TrimSpace(line)
		_, action, uses := strings.Cut(line, "uses: ")
		switch {
		case uses && !pinned.MatchString(action):
			wrong = append(wrong, "not pinned: "+action)
		case strings.HasSuffix(strings.Split(line, " #")[0], ": write") && !strings.HasPrefix(line, "security-events:"):
			wrong = append(wrong, "a job may change something: "+line)
		case strings.Contains(line, "pull_request_target"):
			wrong = append(wrong, "code of strangers runs with the rights of the repository")
		}
	}
	if n := strings.Count(workflow, "actions/checkout@"); strings.Count(workflow, "persist-credentials: false") != n {
		wrong = append(wrong, "a checkout leaves its token to the steps after it")
	}
	return wrong
}

func TestWorkflowsHaveNoMoreRightsThanTheyNeed(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, ".github/workflows/*"))
	if err != nil || len(files) < 4 {
		t.Fatalf("only %q: %v", files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, wrong := range lax(string(b)) {
			t.Errorf("%s: %s", file, wrong)
		}
	}
}

func TestDependabotKnowsEveryModule(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, ".github/dependabot.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range modules(t) {
		name, err := filepath.Rel(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		if entry := `- "/` + strings.TrimPrefix(filepath.ToSlash(name), ".") + "\"\n"; !strings.Contains(string(b), entry) {
			t.Errorf("dependabot.yml has no %s", entry)
		}
	}
}

func TestLaxWorkflowsAreFound(t *testing.T) {
	const head, hash = "on: push\npermissions:\n  contents: read\njobs:\n", "0123456789012345678901234567890123456789"
	for workflow, want := range map[string][]string{
		head + "  - uses: a/b@" + hash + " # v1.2.3\n":   nil,
		head + "  - uses: a/b/c@" + hash + " # v1.2.3\n": nil,
		head + "    security-events: write # results\n":  nil,
		head + "  - uses: a/b@v1\n":                      {"not pinned: a/b@v1"},
		head + "  - uses: a/b@" + hash + "\n":            {"not pinned: a/b@" + hash},
		head + "    contents: write\n":                   {"a job may change something: contents: write"},
		"on: push\njobs:\n": {
			"the workflow has other permissions than to read the contents"},
		head + "on: pull_request_target\n": {
			"code of strangers runs with the rights of the repository"},
		head + "  - uses: actions/checkout@" + hash + " # v1.2.3\n": {
			"a checkout leaves its token to the steps after it"},
	} {
		if got := lax(workflow); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", workflow, got, want)
		}
	}
}
