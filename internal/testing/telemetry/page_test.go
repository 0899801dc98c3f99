package telemetry_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// The page has all metrics that exist, with the names and labels with which Prometheus reads them.
func TestThePageHasEveryMetric(t *testing.T) {
	page, err := os.ReadFile("../../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	all := scrape(t)
	table := "| metric | in Prometheus | kind | unit | what | labels |\n| --- | --- | --- | --- | --- | --- |\n"
	for _, name := range slices.Sorted(maps.Keys(instruments)) {
		i, series, suffix := instruments[name], strings.ReplaceAll(name, ".", "_"), ""
		switch {
		case i.kind == "counter":
			series += "_total"
		case i.unit == "s":
			series += "_seconds"
		}
		if i.kind == "histogram" {
			suffix = "_bucket"
		}
		if all[series+suffix] == nil {
			t.Errorf("nothing has recorded %s as %s", name, series+suffix)
		}
		var labels []string
		for _, label := range slices.Sorted(maps.Keys(all[series+suffix])) {
			if label == "error_type" || strings.HasPrefix(label, "locker_") {
				labels = append(labels, "`"+label+"`")
			}
		}
		table += fmt.Sprintf("| `%s` | `%s` | %s | %s | %s | %s |\n", name, series, i.kind, i.unit, i.description,
			strings.Join(labels, ", "))
	}
	if !strings.Contains(string(page), "\n"+table+"\n") {
		t.Errorf("docs/observability.md has another table. It is to have this one:\n%s", table)
	}
}
