package alerts

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker/internal/testing/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const dashboards = "../../../../docs/dashboards/"

// patience is how long it may take until all alerts have fired. It takes half a minute.
const patience = 100 * time.Second

// A program in trouble fires every alert, and one that is well none. The rules are as they are shipped, but for how
// long something has to be the case: minutes there, and one second here.
func TestEveryAlertFiresAndEveryPanelShowsIt(t *testing.T) {
	well, troubled := begin(t), begin(t)
	rules, alerts := shortened(t)
	prom := startPrometheus(t, rules, map[string]*program{"well": well, "troubled": troubled})
	queries := panels(t)
	if len(alerts) < 7 || len(queries) < 20 {
		t.Fatalf("only %d alerts and %d queries were found", len(alerts), len(queries))
	}

	// A rate needs two values, so a program that has just begun shows nothing.
	const waits = `rate(locker_lock_wait_duration_seconds_count[1m]) > 0 and on (job) rate(locker_term_active[1m])`
	for end := time.Now().Add(patience); len(prom.query(t, waits)) < 2 && time.Now().Before(end); {
		pause(t.Context(), interval)
	}
	troubled.fail()

	for end := time.Now().Add(patience); time.Now().Before(end) && len(alerts)+len(queries) > 0; {
		pause(t.Context(), interval)
		alerts = slices.DeleteFunc(alerts, func(name string) bool {
			return len(prom.query(t, `ALERTS{job="troubled",alertstate="firing",alertname="`+name+`"}`)) > 0
		})
		queries = slices.DeleteFunc(queries, func(q query) bool {
			return slices.ContainsFunc(prom.query(t, q.expr), func(v string) bool { return v != "NaN" && v != "0" })
		})
	}
	for _, name := range alerts {
		t.Errorf("%s has not fired", name)
	}
	for _, q := range queries {
		t.Errorf("panel %s shows nothing: %s", q.panel, q.expr)
	}
	if wrong := prom.query(t, `max_over_time(ALERTS{job="well",alertstate="firing"}[10m])`); len(wrong) > 0 {
		t.Errorf("%d alerts have fired for a program that is well", len(wrong))
	}
}

var lasting = regexp.MustCompile(`(?m)^( +for:) \w+$`)

// shortened returns the rules with another duration, and the names of the alerts.
func shortened(t *testing.T) (rules string, alerts []string) {
	text, err := os.ReadFile(dashboards + "alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(string(text), -1) {
		alerts = append(alerts, m[1])
	}
	return lasting.ReplaceAllString(string(text), "$1 1s"), alerts
}

// query is one of the dashboard.
type query struct{ panel, expr string }

// panels returns the queries as Grafana sends them, about the program in trouble.
func panels(t *testing.T) (all []query) {
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err := os.ReadFile(dashboards + "locker.json")
	if err == nil {
		err = json.Unmarshal(text, &dashboard)
	}
	if err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$job", "troubled", "$__rate_interval", "1m")
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all = append(all, query{p.Title, fill.Replace(target.Expr)})
		}
	}
	return all
}

// interval is how often Prometheus reads, and evaluates the rules.
const interval = time.Second

type prom struct{ url string }

func startPrometheus(t *testing.T, rules string, jobs map[string]*program) *prom {
	binary, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("this test needs Prometheus: install it (scripts/need-prometheus.sh, or apt-get install -y prometheus), " +
			"or run the test by `make test-long`, which does so")
	}
	dir, addr := t.TempDir(), testserver.FreeAddr(t)
	config := fmt.Sprintf("global: {scrape_interval: %[1]s, evaluation_interval: %[1]s}\n"+
		"rule_files: [rules.yml]\nscrape_configs:\n", interval)
	for job, p := range jobs {
		config += fmt.Sprintf("  - {job_name: %s, static_configs: [{targets: [%q]}]}\n", job,
			strings.TrimPrefix(p.metrics.URL, "http://"))
	}
	for name, text := range map[string]string{"prometheus.yml": config, "rules.yml": rules} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var server testserver.Server
	t.Cleanup(server.Kill)
	err = server.Launch(binary, dir, nil, []string{
		"--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", addr, "--log.level", "warn",
	})
	p := &prom{"http://" + addr}
	if err == nil {
		err = server.Await(func() bool {
			resp, err := http.Get(p.url + "/-/ready")
			if err != nil {
				return false
			}
			_ = resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		})
	}
	if err != nil {
		t.Fatalf("prometheus: %v", err)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return p
}

// query returns the values of all series of the result.
func (p *prom) query(t *testing.T, expr string) (values []string) {
	t.Helper()
	resp, err := http.Get(p.url + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []struct{ Value [2]any } }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %v%s", expr, err, answer.Error)
	}
	for _, r := range answer.Data.Result {
		values = append(values, fmt.Sprint(r.Value[1]))
	}
	return values
}
