package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/label"
	"github.com/golocker/locker/internal/core/placename"
	"github.com/golocker/locker/rwlock"
)

func inspectCommand(a *app) *cobra.Command {
	var keys []string
	permits, shared := 0, false
	cmd := &cobra.Command{
		Use:     "inspect KEY",
		GroupID: groupUse,
		Short:   "Show who holds a lock, since when, and who waits",
		Long: `Inspect shows the state of a lock without changing it: the label of its holder and the first characters of
the owner's token, when it was acquired, when it becomes free unless it is renewed, its fencing token, and the number of
waiters. For a Redlock it also shows the state on each node.

The states are:

  free      nobody holds the lock
  held      an owner holds it
  kept      the owner has released it, and it stays taken until --min-hold is over
  split     some nodes of a Redlock have an owner, but no owner has a majority
  foreign   the key holds something that is not a lock
  unknown   too few nodes answered

The time since a lock was acquired is derived from its fencing token and the server's clock. Without clock_skew,
Kubernetes counts no TTL, and neither do S3 and DynamoDB on servers that are not Amazon's: inspect shows how long ago it
has seen the lock for the first time itself, and when somebody who watches it from now on can take it if its holder is
dead. Called again, it shows the same.

Several locks, such as those that locker run acquires together, are inspected one after the other: each may have changed
when the next one is shown.

With --permits, inspect shows who has which of the permits, how many of so many are taken, and how many wait. On stores
where each permit is a lock, it shows these locks, and at the end the gate. The holder of the gate is the first of those
that wait, and waits for all permits. Those that wait for the gate are the others.

With --shared, it shows who has the key of readers and writers, and how many wait. On stores where these are made of
locks, the key has 64 slots, of which a reader holds one and a writer all, the gate, and the lock rwintent, for which
writers wait before the gate. Free ones are not shown then; --exclusive is the same.

Without these flags, inspect shows the plain lock of that name. If that is free, it also shows what readers, writers,
and holders of the first 64 permits have of the key.

It exits with 0 if the state is known, whatever it is, and with 69 otherwise.`,
		Example: `  locker inspect backup
  locker inspect --key alice --key bob
  locker inspect export --permits 3
  locker inspect backup --json | jq -r .state`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(keys) == 0 {
				return oneKey(cmd, args)
			}
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q beside --key", args[0])
			}
			for _, key := range keys {
				if err := oneKey(cmd, []string{key}); err != nil {
					return err
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			all := slices.Concat(keys, args)
			if err := checkPermits(cmd, permits); err != nil {
				return err
			}
			if permits > 0 && shared {
				return exit.Usagef("--shared and --permits exclude each other")
			}
			if !shared && permits == 0 {
				return a.inspectAny(cmd.Context(), all)
			}
			l, i, err := a.inspector(cmd.Context())
			if err != nil {
				return err
			}
			var locks []string
			for _, key := range all {
				if shared {
					locks = append(locks, rwlock.New(l).Locks(key)...)
				} else {
					locks = append(locks, locksOf(l, key, permits)...)
				}
			}
			use := make(map[string]*used)
			err = a.show(locks, func(key string) (inspect.Inspection, error) {
				seen, err := i.Inspect(cmd.Context(), key)
				of, _ := partOf(inspect.Listed{Key: key})
				if use[of] == nil {
					use[of] = new(used)
				}
				use[of].add(key, seen, err)
				return seen, err
			}, shared)
			for _, key := range all {
				if u := use[key]; !a.json && permits > 0 && u != nil && u.err == nil {
					fmt.Fprintf(a.stdout, "\n%q: %d of %d permits are taken, %d wait\n", key, u.taken, permits, u.waiting)
				}
			}
			return err
		},
	}
	cmd.Flags().StringArrayVarP(&keys, "key", "k", nil, "the `name` of a lock; given several times, of several locks")
	permitsVar(cmd, &permits, "the `number` of permits that the key has, instead of one lock")
	cmd.Flags().BoolVar(&shared, "shared", false, "the key is that of readers and writers")
	cmd.Flags().BoolVar(&shared, "exclusive", false, "the same as --shared")
	_ = cmd.RegisterFlagCompletionFunc("key", cobra.NoFileCompletions)
	return cmd
}

// used is how much of a key is taken, and how many wait for it.
type used struct {
	taken, waiting int
	err            error
}

// add adds a lock that belongs to the key: a group, a permit, or a gate, which the first waiter holds while it waits
// for each of the permits.
func (u *used) add(name string, i inspect.Inspection, err error) {
	u.err = errors.Join(u.err, err)
	for _, h := range i.Holders {
		u.taken += len(h.Permits)
	}
	_, what, _ := placename.Parse(name)
	if _, err := strconv.Atoi(what); err != nil { // nobody but the first waiter waits for a permit that is a lock
		u.waiting += i.Waiting
	}
	switch {
	case i.State == inspect.Free || i.Holders != nil:
	case what == "gate":
		u.waiting++
	default:
		u.taken++
	}
}

// show shows the state of each lock, which look returns, or only of those that are not free. If one is not known, it
// shows the others, and returns the error.
func (a *app) show(keys []string, look func(key string) (inspect.Inspection, error), taken bool) error {
	var errs []error
	shown := false
	for _, key := range keys {
		seen, err := look(key)
		errs = append(errs, err)
		if err != nil && seen.Nodes == nil {
			continue
		}
		if taken && seen.State == inspect.Free {
			continue
		}
		if a.json {
			if err := a.printJSON(lockOf(key, seen)); err != nil {
				return err
			}
			continue
		}
		if shown {
			fmt.Fprintln(a.stdout)
		}
		shown = true
		a.printInspection(key, seen)
	}
	return errors.Join(errs...)
}

// inspectAny shows the plain locks of keys. In place of one that is free, it shows the locks of permits, readers and
// writers of that key that are not.
func (a *app) inspectAny(ctx context.Context, keys []string) error {
	l, i, err := a.inspector(ctx)
	if err != nil {
		return err
	}
	type answer struct {
		seen inspect.Inspection
		err  error
	}
	var locks []string
	plain := make(map[string]answer) // the store is not asked again: it may be silent
	for _, key := range keys {
		var others []string
		seen, err := i.Inspect(ctx, key)
		plain[key] = answer{seen, err}
		if err == nil && seen.State == inspect.Free && seen.Waiting == 0 {
			kinds, _ := kindsOf(ctx, l, i, key) // an error is that of the plain lock, too
			for _, k := range kinds {
				others = append(others, k.locks...)
			}
		}
		if len(others) == 0 {
			others = []string{key}
		}
		locks = append(locks, others...)
	}
	return a.show(locks, func(key string) (inspect.Inspection, error) {
		if known, ok := plain[key]; ok {
			return known.seen, known.err
		}
		return i.Inspect(ctx, key)
	}, false)
}

// inspector opens the configured locks and returns them and their Inspector.
func (a *app) inspector(ctx context.Context) (locker.Locker, inspect.Inspector, error) {
	l, err := a.store(ctx)
	if err != nil {
		return nil, nil, err
	}
	i, ok := locker.As[inspect.Inspector](l)
	if !ok {
		return nil, nil, errors.New("the backend cannot show the state of its locks")
	}
	return l, i, nil
}

// store opens the configured locks, which other processes see, too.
func (a *app) store(ctx context.Context) (locker.Locker, error) {
	c, err := a.config()
	if err != nil {
		return nil, err
	}
	hurry(c)
	return a.shared(ctx, c)
}

// shared opens the locks that c describes, which other processes see, too.
func (a *app) shared(ctx context.Context, c *config.Config) (locker.Locker, error) {
	l, err := a.open(ctx, c)
	if err != nil {
		return nil, err
	}
	a.opened = append(a.opened, l)
	if l.InProcess() {
		err := fmt.Errorf("locks in %s exist only inside the process that takes them", c.Backend)
		return nil, exit.With(exit.Config, err, "configure the store that the program uses")
	}
	return l, nil
}

// lockJSON is an inspection as JSON. Fields that are unknown, or have no meaning in a state, are omitted.
type lockJSON struct {
	At          *time.Time `json:"at,omitempty"` // only for watch
	Key         string     `json:"key,omitempty"`
	Node        string     `json:"node,omitempty"`
	State       string     `json:"state"`
	Owner       string     `json:"owner,omitempty"`
	Label       string     `json:"label,omitempty"`
	HeldMS      int64      `json:"held_ms,omitempty"` // at least, if SeenMS is there
	SeenMS      int64      `json:"seen_ms,omitempty"`
	RemainingMS int64      `json:"remaining_ms,omitempty"`
	Fence       uint64     `json:"fence,omitempty"`
	Waiting     int        `json:"waiting"`
	Error       string     `json:"error,omitempty"`
	Permits     []int      `json:"permits,omitempty"` // the numbers that the owner has
	Access      string     `json:"access,omitempty"`  // of readers and writers: shared, upgradeable or exclusive
	Holders     []lockJSON `json:"holders,omitempty"` // of a group
	Nodes       []lockJSON `json:"nodes,omitempty"`
}

func lockOf(key string, i inspect.Inspection) lockJSON {
	j := lockJSON{
		Key: key, State: string(i.State), Owner: i.Owner, Label: i.Label,
		HeldMS: i.Held.Milliseconds(), RemainingMS: i.Remaining.Milliseconds(),
		Fence: i.Fence, Waiting: i.Waiting, Permits: i.Permits, Access: i.Kind,
	}
	for _, h := range i.Holders {
		j.Holders = append(j.Holders, lockOf("", h))
	}
	if i.Seen > 0 && i.Remaining > 0 {
		j.SeenMS = max(1, i.Seen.Milliseconds())
	}
	if heldFor(i) == "" {
		j.HeldMS = 0
	}
	for _, n := range i.Nodes {
		of := lockOf("", n.Inspection)
		of.Node = n.Name
		if n.Err != nil {
			of.Error = n.Err.Error()
		}
		j.Nodes = append(j.Nodes, of)
	}
	return j
}

func (a *app) printInspection(key string, i inspect.Inspection) {
	s := a.style(a.stdout)
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	row := func(name, text string) {
		if text != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, text)
		}
	}
	row("lock", strconv.Quote(key))
	row("state", s.ofState(i))
	row("owner", owner(i))
	if held := heldFor(i); held != "" {
		row("acquired", held+" ago")
	}
	row("free in", freeIn(i))
	row("fence", fence(i))
	row("waiting", strconv.Itoa(i.Waiting))
	_ = w.Flush()
	if len(i.Holders) > 0 {
		fmt.Fprintln(a.stdout)
		a.printHolders(i.Holders)
	}
	if len(i.Nodes) > 0 {
		fmt.Fprintln(a.stdout)
		a.printNodes(a.stdout, i.Nodes)
	}
}

// printHolders prints who has something of a group.
func (a *app) printHolders(holders []inspect.Inspection) {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	what := "permits"
	if holders[0].Kind != "" {
		what = "access"
	}
	fmt.Fprintln(w, what+"\tstate\tholder\towner\tfree in\tfence")
	for _, h := range holders {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(h.Kind, numbers(h.Permits)), h.State, labelOf(h), orDash(owner(h)),
			orDash(span(h.Remaining)), orDash(fence(h)))
	}
	_ = w.Flush()
}

func (a *app) printNodes(to io.Writer, nodes []inspect.Node) {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "node\tstate\tholder\towner\tfree in\tfence\twaiting")
	for _, n := range nodes {
		if n.Err != nil {
			fmt.Fprintf(w, "%s\t%s: %v\n", n.Name, n.State, n.Err)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\n", n.Name, n.State, labelOf(n.Inspection),
			orDash(owner(n.Inspection)), orDash(span(n.Remaining)), orDash(fence(n.Inspection)), n.Waiting)
	}
	_ = w.Flush()
}

// ofState returns the state in colour. If the lock is held, it says by whom and for how long.
func (s style) ofState(i inspect.Inspection) string {
	switch i.State {
	case inspect.Free:
		return s.good(string(i.State))
	case inspect.Held:
		return s.strong(heldUntil(i))
	case inspect.Kept:
		return s.strong(string(i.State))
	default:
		return s.bad(string(i.State))
	}
}

// heldUntil describes a lock that is held, in the words of package locker.
func heldUntil(i inspect.Inspection) string {
	e := locker.HeldError{Remaining: i.Remaining, Seen: i.Seen, Label: i.Label}
	if rest, ok := strings.CutPrefix(e.Error(), locker.ErrHeld.Error()); ok { // nothing is known of the holder
		return string(inspect.Held) + rest
	}
	return e.Error()
}

// heldFor says for how long the lock has been held, as far as that is known. On a store that does not count, that is
// what the last renewal says; the time since this process has seen it says nothing of the owner.
func heldFor(i inspect.Inspection) string {
	switch {
	case i.Seen == 0:
		return span(i.Held)
	case i.Held.Milliseconds() > i.Seen.Milliseconds():
		return "at least " + span(i.Held)
	}
	return ""
}

// labelOf returns the label of the holder, or a dash.
func labelOf(i inspect.Inspection) string {
	if i.Label == "" {
		return "-"
	}
	return label.Show(i.Label)
}

// owner describes the owner by the first characters of its token, followed by dots.
func owner(i inspect.Inspection) string {
	if i.Owner == "" {
		return ""
	}
	if i.State == inspect.Kept {
		return "nobody (last " + i.Owner + "…)"
	}
	return i.Owner + "…"
}

// freeIn says when the lock is free, unless ofState says so.
func freeIn(i inspect.Inspection) string {
	switch i.State {
	case inspect.Held:
		return ""
	case inspect.Kept:
		if i.Seen > 0 {
			return span(i.Remaining) + " for those who watch it, first seen " + span(max(time.Millisecond, i.Seen)) + " ago"
		}
		return span(i.Remaining)
	}
	if i.Remaining == 0 {
		return ""
	}
	return span(i.Remaining) + " unless renewed"
}

func fence(i inspect.Inspection) string {
	if i.Fence == 0 {
		return ""
	}
	return strconv.FormatUint(i.Fence, 10)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// span formats a duration with limited precision.
func span(d time.Duration) string {
	switch {
	case d <= 0:
		return ""
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}
