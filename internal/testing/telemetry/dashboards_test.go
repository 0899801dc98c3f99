package telemetry_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// series has the values of each label of each metric, with the names that Prometheus uses.
type series map[string]map[string][]string

// scrape runs all scenarios and returns the series that Prometheus would read.
func scrape(t *testing.T) series {
	all := series{}
	play := func(f func(r *recorder)) {
		virtual.Test(t, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			exporter, err := promexporter.New(promexporter.WithRegisterer(registry))
			if err != nil {
				t.Fatal(err)
			}
			f(newRecorder(t, exporter))
			all.gather(t, registry)
		})
	}
	for _, s := range scenarios {
		play(func(r *recorder) {
			store := &store{Backend: memory.NewBackend(), tokens: &r.tokens}
			c := locker.NewClient(store)
			s.do(r, store, r.wrap(c))
			_ = c.Close()
		})
	}
	play(func(r *recorder) { lead(r, &store{Backend: memory.NewBackend(), tokens: &r.tokens}) })
	for _, s := range redlockScenarios {
		play(func(r *recorder) {
			d := newDeployment(r)
			s.do(r, d, r.wrap(d.locker))
			time.Sleep(10 * time.Second)
			_ = d.locker.Close()
		})
	}
	return all
}

func (s series) gather(t *testing.T, registry *prometheus.Registry) {
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name, suffixes := f.GetName(), []string{""}
			if h := m.GetHistogram(); h != nil {
				suffixes = []string{"_bucket", "_sum", "_count"}
				for _, b := range h.GetBucket() {
					s.add(name+"_bucket", "le", number(b.GetUpperBound()))
				}
			}
			for _, suffix := range suffixes {
				for _, label := range []string{"job", "instance"} { // Prometheus adds them
					s.add(name+suffix, label, "")
				}
				for _, l := range m.GetLabel() {
					s.add(name+suffix, l.GetName(), l.GetValue())
				}
			}
		}
	}
}

func (s series) add(metric, label, value string) {
	if s[metric] == nil {
		s[metric] = map[string][]string{}
	}
	if !slices.Contains(s[metric][label], value) {
		s[metric][label] = append(s[metric][label], value)
	}
}

func number(f float64) string {
	text, _ := json.Marshal(f)
	return string(text)
}

var (
	selector = regexp.MustCompile(`(locker_\w+)(?:\{([^}]*)\})?`)
	grouping = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right) \(([^)]*)\)`)
	matcher  = regexp.MustCompile(`^(\w+)(=~|!=|!~|=)"(.*)"$`)
)

// check returns the unknown names in expr, and the metrics that expr reads.
func (s series) check(expr string) (wrong, read []string) {
	known := map[string]bool{}
	bare := grouping.ReplaceAllString(expr, " ")
	for _, m := range selector.FindAllStringSubmatch(bare, -1) {
		labels, ok := s[m[1]]
		if !ok {
			wrong = append(wrong, "there is no metric "+m[1])
			continue
		}
		read = append(read, m[1])
		for name := range labels {
			known[name] = true
		}
		for _, text := range strings.Split(m[2], ",") {
			if text == "" {
				continue
			}
			parts := matcher.FindStringSubmatch(text)
			if parts == nil {
				wrong = append(wrong, "cannot read "+text)
				continue
			}
			values, ok := labels[parts[1]]
			if !ok {
				wrong = append(wrong, m[1]+" has no label "+parts[1])
				continue
			}
			for _, value := range strings.Split(parts[3], "|") {
				if !strings.HasPrefix(value, "$") && !slices.Contains(values, value) {
					wrong = append(wrong, m[1]+" never has "+parts[1]+"="+value)
				}
			}
		}
	}
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for _, label := range strings.Split(m[1], ",") {
			if label = strings.TrimSpace(label); label != "" && !known[label] {
				wrong = append(wrong, "no metric in it has the label "+label)
			}
		}
	}
	return wrong, read
}

// expressions returns the expressions of the dashboard, by the titles of the panels, and those of the alert rules.
func expressions(t *testing.T) map[string][]string {
	all := map[string][]string{}
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
		Templating struct{ List []struct{ Definition string } }
	}
	text, err := os.ReadFile("../../../docs/dashboards/locker.json")
	if err == nil {
		err = json.Unmarshal(text, &dashboard)
	}
	if err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			all["panel "+p.Title] = append(all["panel "+p.Title], target.Expr)
			for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !regexp.MustCompile(`by \([^)]*\b` + m[1] + `\b`).MatchString(target.Expr) {
					t.Errorf("panel %s: the legend's %s is not in %s", p.Title, m[1], target.Expr)
				}
			}
		}
	}
	for _, v := range dashboard.Templating.List {
		if m := regexp.MustCompile(`label_values\((\w+), (\w+)\)`).FindStringSubmatch(v.Definition); m != nil {
			all["variables"] = append(all["variables"], "sum by ("+m[2]+") ("+m[1]+")")
		}
	}

	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	text, err = os.ReadFile("../../../docs/dashboards/alerts.yml")
	if err == nil {
		err = yaml.Unmarshal(text, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			all["alert "+r.Alert] = append(all["alert "+r.Alert], r.Expr)
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s has no severity, summary or description", r.Alert)
			}
			for _, text := range r.Annotations {
				for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(text, -1) {
					// Without an aggregation the result has all labels of the metric.
					if strings.Contains(r.Expr, " by (") &&
						!regexp.MustCompile(`by \([^)]*\b`+m[1]+`\b`).MatchString(r.Expr) {
						t.Errorf("%s: %s is not in the result", r.Alert, m[1])
					}
				}
			}
		}
	}
	return all
}

// All metrics, labels and values in the dashboard and the alerts exist, and the dashboard shows every metric.
func TestDashboardsUseExistingMetrics(t *testing.T) {
	all := scrape(t)
	shown := map[string]bool{}
	exprs := expressions(t)
	if len(exprs) < 15 {
		t.Errorf("only %d panels and alerts were found", len(exprs))
	}
	for where, list := range exprs {
		for _, expr := range list {
			wrong, read := all.check(expr)
			for _, w := range wrong {
				t.Errorf("%s: %s\n%s", where, w, expr)
			}
			if len(read) == 0 {
				t.Errorf("%s: reads nothing: %s", where, expr)
			}
			if strings.HasPrefix(where, "panel") {
				for _, name := range read {
					shown[regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")] = true
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, ""); strings.HasPrefix(name,
			"locker_") && !shown[base] {
			t.Errorf("no panel shows %s", name)
		}
	}
}

func TestCheckNoticesWrongNames(t *testing.T) {
	s := series{"locker_a_total": {"job": {""}, "locker_outcome": {"error"}}}
	for _, expr := range []string{
		`rate(locker_b_total[5m])`,
		`sum by (nobody) (rate(locker_a_total[5m]))`,
		`locker_a_total{nobody="x"}`,
		`locker_a_total{locker_outcome=~"error|fine"}`,
	} {
		if wrong, _ := s.check(expr); len(wrong) != 1 {
			t.Errorf("%s: %q", expr, wrong)
		}
	}
	if wrong, read := s.check(`sum by (job) (rate(locker_a_total{locker_outcome="error"}[5m]))`); len(wrong) > 0 ||
		len(read) != 1 {
		t.Error(wrong)
	}
}
