package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/internal/judge"
)

// Exit codes of judge.
const (
	exitBroken    = 1 // a promise was broken
	exitNotJudged = 2 // there was nothing to judge
)

// judgeMemory is how many bytes of logs are judged in memory.
const judgeMemory = 32 << 20

// judgeSlack is how late a busy machine may tell a loss.
const judgeSlack = 100 * time.Millisecond

func judgeCommand(a *app) *cobra.Command {
	var o judge.Options
	oneStore := false
	cmd := &cobra.Command{
		Use:     "judge FILE…",
		GroupID: groupLook,
		Short:   "Say whether locks have kept their promises, from audit logs",
		Long: `Judge reads the audit logs of any number of programs and machines, which the setting audit writes, and says
where a lock was not what it promises to be. docs/audit.md has a table of what is judged, and with which assumption.

Without --clock-error, judge compares the times of a process with each other only. With it, also those of different
processes: for two holders at the same time, for example. The value is the largest difference between the clocks of any
two of the machines. If they differ by more, what judge finds may be wrong.

What may have happened where lines are missing is not judged, nor what a process has done after its last line, unless
that says that the log is complete. Locks of different stores are not compared.

Remarks are about what breaks no promise of a lock, and may be the cause: a holder that went on after it was told of its
loss, and a key that is locked in several stores.

Files may be larger than the memory. The lines of one key have to fit into it.

It exits with 0 if it has found nothing, with 1 if a promise was broken, and with 2 if there was nothing to judge.`,
		Example: `  locker judge web-*/locks.jsonl
  locker judge --clock-error 50ms --json web-*/locks.jsonl*`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no file: give the audit logs")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, files []string) error {
			if o.Clocks = cmd.Flags().Changed("clock-error"); o.ClockError < 0 {
				return exit.Usagef("--clock-error %v: it is 0 or more", o.ClockError)
			}
			o.Slack = judgeSlack
			return a.judge(files, o, oneStore)
		},
	}
	durationVar(cmd.Flags(), &o.ClockError, "clock-error", "by how much any two clocks differ at most")
	cmd.Flags().BoolVar(&oneStore, "one-store", false, "all logs are of one store, whatever they call it")
	return cmd
}

// judgeJSON is the output of judge.
type judgeJSON struct {
	Findings   []findingJSON `json:"findings"`
	Remarks    []findingJSON `json:"remarks"`
	Holds      int           `json:"holds"`
	Lines      int           `json:"lines"`
	Processes  int           `json:"processes"`
	Stores     []string      `json:"stores"`
	Gaps       int           `json:"gaps"`
	Open       int           `json:"open"`
	Unreadable int           `json:"unreadable"`
	Newer      int           `json:"newer"`
	ClockError *string       `json:"clock_error"`
}

type findingJSON struct {
	Rule  string        `json:"rule"`
	Title string        `json:"title"`
	Text  string        `json:"text"`
	Lines []judge.Entry `json:"lines"`
	More  int           `json:"more"` // of this rule and key, which are left out
}

func (a *app) judge(files []string, o judge.Options, oneStore bool) error {
	dir, err := os.MkdirTemp("", "locker-judge-")
	if err != nil {
		return exit.With(exit.OSErr, err, "")
	}
	defer func() { _ = os.RemoveAll(dir) }()
	progress := a.progress()
	progress.show("reading")
	logs, err := judge.Open(files, judgeMemory, dir, oneStore)
	if err != nil {
		progress.done()
		return exit.With(exitNotJudged, err, "")
	}
	progress.show("judging")
	found, remarks, more := []findingJSON{}, []findingJSON{}, 0
	shown := func(f judge.Finding) findingJSON {
		return findingJSON{f.Rule, judge.Titles[f.Rule], f.Text, f.Entries, f.More}
	}
	o.Remark = func(f judge.Finding) { remarks = append(remarks, shown(f)) }
	holds, err := logs.Judge(o, func(f judge.Finding) {
		found, more = append(found, shown(f)), more+f.More
	})
	progress.done()
	if err != nil {
		return exit.With(exitNotJudged, err, "")
	}
	gaps, open := logs.Gaps()
	if a.json {
		v := judgeJSON{
			found, remarks, holds, logs.Lines, logs.Processes(), logs.Stores(), gaps, open, logs.Unreadable, logs.Newer, nil,
		}
		if o.Clocks {
			text := o.ClockError.String()
			v.ClockError = &text
		}
		err = a.printJSON(v)
	} else {
		a.printFindings(found, a.style(a.stdout).bad)
		a.printFindings(remarks, a.style(a.stdout).warn)
	}
	switch {
	case err != nil:
		return err
	case holds == 0:
		return exit.With(exitNotJudged, errors.New("no lock was acquired in these logs: there is nothing to judge"), "")
	}
	if !a.json && !a.quiet {
		a.printScope(logs, o, len(found)+more, holds)
	}
	if len(found) > 0 {
		return &exit.Error{Code: exitBroken}
	}
	return nil
}

// printScope prints how much was judged, and what was not. It belongs to the result: nothing found in what is not there
// says nothing.
func (a *app) printScope(logs *judge.Logs, o judge.Options, found, holds int) {
	fmt.Fprintf(a.stdout, "%d findings; %d holds were judged, of %d processes, in %d lines\n", found, holds,
		logs.Processes(), logs.Lines)
	gaps, open := logs.Gaps()
	stores := logs.Stores()
	for _, n := range []struct {
		count int
		text  string
	}{
		{gaps, "times, lines are missing. What happened there was not judged"},
		{open, "logs have no end: a process goes on or was killed. What came after the last line was not judged"},
		{logs.Unreadable, "lines could not be read"},
		{logs.Newer, "lines are of a newer version of locker, and were not read"},
		{len(stores) - 1, "further stores. Locks of different stores were not compared: " + strings.Join(stores, ", ") +
			". If these are names of one store and one prefix, use --one-store"},
	} {
		if n.count > 0 {
			fmt.Fprintf(a.stdout, "%d %s\n", n.count, n.text)
		}
	}
	if !o.Clocks && logs.Processes() > 1 {
		fmt.Fprintln(a.stdout, "Processes were not compared by their clocks: use --clock-error, with 0s for one machine")
	}
}

// printFindings prints findings for people: what, who, when, and the lines that show it.
func (a *app) printFindings(found []findingJSON, title func(string) string) {
	for _, f := range found {
		fmt.Fprintf(a.stdout, "%s (%s)\n  %s\n", title(f.Title), f.Rule, f.Text)
		for _, e := range f.Lines {
			what := strings.Join(strings.Fields(fmt.Sprint(e.Event, " ", e.Outcome, " ", e.Reason)), ", ")
			fmt.Fprintf(a.stdout, "  %s %s:%d %s\n", e.Answered.UTC().Format(time.RFC3339Nano), e.File, e.Number, what)
		}
		if f.More > 0 {
			fmt.Fprintf(a.stdout, "  and %d more of this kind, of this key\n", f.More)
		}
		fmt.Fprintln(a.stdout)
	}
}
