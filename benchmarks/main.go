// Command benchmarks puts this library side by side with the bare Redis clients and with other lock libraries, on
// redis-servers that it starts and ends itself. README.md says what is measured and how to read it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() {
	if plan := os.Getenv(crewEnv); plan != "" {
		crewHere(plan)
		return
	}
	os.Exit(command())
}

// command returns the exit code.
func command() int {
	var o options
	flag.BoolVar(&o.full, "full", false, "longer visits and more rounds")
	flag.StringVar(&o.run, "run", "", "only scenarios whose `names` match this regular expression")
	flag.IntVar(&o.rounds, "rounds", 0, "rounds, if not as planned")
	flag.Func("rtt", "round `times` between clients and servers: 0 (loopback), 0.5ms, or 0,0.5ms (default 0)", o.parseRTTs)
	flag.StringVar(&o.out, "out", "results", "`directory` for results.json and the plots")
	flag.StringVar(&o.markdown, "markdown", "", "`file` for the tables in Markdown")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program on the spot
	if len(o.rtts) == 0 {
		o.rtts = []time.Duration{0}
	}
	o.plan = quick
	if o.full {
		o.plan = full
	}
	if err := run(ctx, o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		if errors.Is(err, context.Canceled) {
			return 130
		}
		return 1
	}
	return 0
}

type options struct {
	full          bool
	run           string
	rounds        int
	rtts          []time.Duration
	out, markdown string
	plan          plan
}

func (o *options) parseRTTs(list string) error {
	for text := range strings.SplitSeq(list, ",") {
		rtt, err := time.ParseDuration(text)
		if err != nil {
			return err
		}
		o.rtts = append(o.rtts, rtt)
	}
	return nil
}

// run measures and reports. It ends the servers before it returns, also after an error.
func run(ctx context.Context, o options, stdout, stderr io.Writer) error {
	only, err := regexp.Compile(o.run)
	if err != nil {
		return err
	}
	if o.rounds > 0 {
		o.plan.Rounds = o.rounds
	}
	s, err := startServers()
	if err != nil {
		return err
	}
	defer s.close()
	report := newReport(o.plan, s)
	begin := time.Now()
	sleep, awake := keepAwake()
	defer sleep()
	report.Machine.Awake = awake
	fmt.Fprintln(stdout, report.summary())
	for _, line := range settings {
		fmt.Fprintln(stdout, "-", line)
	}
	for _, rtt := range o.rtts {
		if s.network, err = newNetwork(s, rtt); err != nil {
			return err
		}
		err := report.measure(ctx, s, rtt, only, progressTo(stderr), stdout)
		network, ended := s.network.end()
		if err := cmp.Or(err, ended); err != nil {
			return err
		}
		if network != "" {
			report.Networks = append(report.Networks, network)
			fmt.Fprintln(stdout, "\n"+network)
		}
	}
	if len(report.Results) == 0 {
		return fmt.Errorf("no scenario matches %q", o.run)
	}
	report.Took = time.Since(begin).Round(time.Second).String()
	report.writeBudgets(stdout)

	if err := os.MkdirAll(o.out, 0o750); err != nil {
		return err
	}
	if err := report.writeJSON(filepath.Join(o.out, "results.json")); err != nil {
		return err
	}
	if err := report.plot(o.out, o.rtts); err != nil {
		return err
	}
	if o.markdown != "" {
		if err := report.writeMarkdown(o.markdown); err != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "took %s; %s has results.json and the plots\n", report.Took, o.out)
	return nil
}

// measure runs the scenarios over the network of s.
func (r *Report) measure(
	ctx context.Context, s *servers, rtt time.Duration, only *regexp.Regexp, progress func(string, ...any),
	stdout io.Writer,
) error {
	byName := map[string]*Result{}
	for _, sc := range scenarios(s, r.Plan) {
		if !only.MatchString(sc.Name) {
			continue
		}
		result, err := sc.run(ctx, r.Plan.Rounds, progress)
		progress("")
		if err != nil {
			return err
		}
		byName[result.Name] = result
		result.Name += suffix(rtt)
		result.Title += inWords(rtt)
		r.Results = append(r.Results, result)
		result.write(stdout)
	}
	r.Budgets = append(r.Budgets, budgets(r.Plan, r.Machine.NativeRelease, rtt, byName)...)
	return nil
}

// progressTo overwrites one line on a terminal, and is silent elsewhere.
func progressTo(w io.Writer) func(string, ...any) {
	f, ok := w.(*os.File)
	if !ok {
		return func(string, ...any) {}
	}
	if stat, err := f.Stat(); err != nil || stat.Mode()&os.ModeCharDevice == 0 {
		return func(string, ...any) {}
	}
	return func(format string, a ...any) { fmt.Fprintf(w, "\r\x1b[K"+format, a...) }
}
