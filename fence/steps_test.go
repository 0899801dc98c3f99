package fence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/golocker/locker/fence"
)

// recorder is a connection that notes what it is asked to do. Every resource has seen its token.
type recorder struct {
	log    []string
	seen   map[string]int64
	commit []error // what Commit returns, one after the other
}

func (r *recorder) note(statement string, args ...any) {
	verb, _, _ := strings.Cut(statement, " ")
	for _, arg := range args {
		if resource, ok := arg.(string); ok {
			verb += " " + resource
		}
	}
	r.log = append(r.log, verb)
}

func (r *recorder) Exec(_ context.Context, statement string, args ...any) error {
	r.note(statement, args...)
	return nil
}

func (r *recorder) Tokens(_ context.Context, statement string, args ...any) ([]int64, error) {
	r.note(statement, args...)
	return []int64{r.seen[args[0].(string)]}, nil
}

func (r *recorder) Begin(context.Context, sql.IsolationLevel) error { r.note("begin"); return nil }
func (r *recorder) Rollback()                                       { r.note("rollback") }
func (r *recorder) Close(error)                                     { r.note("close") }

func (r *recorder) Commit(context.Context) error {
	r.note("commit")
	if len(r.commit) == 0 {
		return nil
	}
	err := r.commit[0]
	r.commit = r.commit[1:]
	return err
}

type state string

func (s state) Error() string    { return string(s) }
func (s state) SQLState() string { return string(s) }

var steps = map[fence.Dialect]string{
	fence.PostgreSQL: "INSERT a, INSERT b, begin, SELECT, do, SELECT a, SELECT b, commit, rollback, close",
	fence.MySQL: "INSERT a, SELECT a, INSERT b, SELECT b, SET, begin, SAVEPOINT, do, RELEASE, SELECT a, SELECT b, " +
		"commit, rollback, SET, close",
	fence.SQLite: "INSERT a, INSERT b, begin, do, UPDATE a, UPDATE b, commit, rollback, close",
}

var two = []fence.Hold{{Resource: "b", Token: 7}, {Resource: "a", Token: 5}}

// run goes through the steps. The function returns failures, one after the other, and then nil.
func run(t *testing.T, r *recorder, dialect fence.Dialect, failures ...error) error {
	t.Helper()
	r.seen = map[string]int64{"a": 5, "b": 7}
	connect := func(context.Context) (fence.Conn, error) { return r, nil }
	return fence.SQL{Dialect: dialect}.Run(t.Context(), connect, two, func(context.Context, fence.Conn) (err error) {
		r.note("do")
		if len(failures) > 0 {
			err, failures = failures[0], failures[1:]
		}
		return err
	})
}

func TestOrderOfSteps(t *testing.T) {
	for dialect, want := range steps {
		r := new(recorder)
		if err := run(t, r, dialect); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(r.log, ", "); got != want {
			t.Errorf("%s:\n%s, want\n%s", dialect, got, want)
		}
	}
}

func TestAllStepsAreRepeated(t *testing.T) {
	for dialect, want := range steps {
		// A deadlock, and a conflict that the function has wrapped: in the function, and at COMMIT.
		r := &recorder{commit: []error{state("40001")}}
		failures := []error{state("40P01"), errors.Join(errors.New("not paid"), fmt.Errorf("%w", state("40001")))}
		if err := run(t, r, dialect, failures...); err != nil {
			t.Fatal(err)
		}
		before, _, _ := strings.Cut(want, "do, ")
		_, after, _ := strings.Cut(want, "commit, ")
		failed := before + "do, " + after
		if got := strings.Join(r.log, ", "); got != strings.Join([]string{failed, failed, want, want}, ", ") {
			t.Errorf("%s: %s", dialect, got)
		}
	}
	r := new(recorder)
	if err := run(t, r, fence.PostgreSQL, slices.Repeat([]error{state("40001")}, 100)...); err == nil {
		t.Error("there is no end")
	}
}

// What COMMIT has done is not known unless the database says it. Then nothing is repeated.
func TestOutcomeOfCommitIsUnknown(t *testing.T) {
	for _, failure := range []error{driver.ErrBadConn, context.Canceled, state("08006"), errors.New("EOF")} {
		r := &recorder{commit: []error{failure}}
		err := run(t, r, fence.MySQL)
		if !errors.Is(err, fence.ErrUnknown) || !errors.Is(err, failure) {
			t.Errorf("%v: %v", failure, err)
		}
		if got := strings.Join(r.log, ", "); got != steps[fence.MySQL] {
			t.Errorf("%v: %s", failure, got)
		}
	}
}
