package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/placename"
	"github.com/golocker/locker/internal/core/tick"
)

// exitFound is the exit code if a listing with a condition has shown a lock.
const exitFound = 1

// listing is what locker ls is asked for.
type listing struct {
	prefix  string
	heldFor time.Duration
	waiting bool
	paid    bool
}

func lsCommand(a *app) *cobra.Command {
	var of listing
	cmd := &cobra.Command{
		Use:     "ls [PREFIX]",
		Aliases: []string{"list"},
		GroupID: groupUse,
		Short:   "List the locks: who has them, since when, and how many wait",
		Long: `Ls lists the locks whose keys begin with PREFIX, or all of them, as far as they are not free: the kind of the
lock, its state, the label of the holder or the first characters of the owner's token, for how long it has been held,
when it becomes free unless it is renewed, and how many wait in the store's queue. A lock that is held for all of the
listing is in it. One that is acquired or released meanwhile may be.

The kinds are:

  lock          a plain lock
  permit 2      a permit of a semaphore, by its number; or how many, of a label
  reader        one that reads, or how many, of a label; an upgradeable reader
                may become a writer
  writer        one that writes
  slot          on stores where readers and writers are made of locks, one of
                the 64 slots of a key; or how many, of a label. A reader has one
  first waiter  who waits at the front for permits, or for readers and a writer
  tick          what locker run --tick keeps

Keys with other than printable characters are shown in quotes. A dash says that the store does not know it. On a store
that counts no TTL, "held for" is the least, and there is no time after which the lock is free for everybody.

Listing is work for the store: Redis goes through all of its keys, twice if there is a PREFIX, and other stores go
through those of the prefix. If it costs money, ls says why, and lists with --paid only.

It exits with 0. With --held-for or --waiting it exits with 1 if it has shown a lock. If the listing is not complete, it
exits with 69, or another code that says why.`,
		Example: `  locker ls
  locker ls checkout
  locker ls --held-for 10m
  locker ls --waiting --json | jq -r .key`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("unexpected argument %q: one prefix at a time; one with spaces needs quotes", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				of.prefix = args[0]
				if _, err := time.ParseDuration(of.prefix); err == nil && of.waiting {
					return exit.Usagef("--waiting takes no time, and %[1]q would be the prefix: use --held-for %[1]s", of.prefix)
				}
			}
			if of.heldFor < 0 {
				return exit.Usagef("--held-for %v is negative", of.heldFor)
			}
			return a.ls(cmd.Context(), of)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	durationVar(cmd.Flags(), &of.heldFor, "held-for",
		"only locks that one holder has had for at least so long, or nobody knows for how long")
	cmd.Flags().BoolVar(&of.waiting, "waiting", false, "only locks for which others wait")
	cmd.Flags().BoolVar(&of.paid, "paid", false, "list although it costs money")
	return cmd
}

var errNoList = exit.With(exit.Usage, errors.New("the backend cannot list its locks"),
	"locker inspect shows the lock of a key")

func (a *app) ls(ctx context.Context, of listing) error {
	l, err := a.store(ctx)
	if err != nil {
		return err
	}
	lister, err := of.lister(l)
	if err != nil {
		return err
	}
	t := &table{app: a}
	for found, err := range of.all(ctx, lister) {
		if errors.Is(err, errors.ErrUnsupported) {
			return errNoList
		}
		if err != nil {
			_ = t.flush()
			return err
		}
		if err := t.add(found); err != nil {
			return err
		}
	}
	switch err := t.flush(); {
	case err != nil:
		return err
	case of.heldFor == 0 && !of.waiting:
		switch {
		case t.n == 0 && of.prefix != "":
			a.note("no lock is held whose key begins with %q", of.prefix)
		case t.n == 0:
			a.note("no lock is held")
		}
		return nil
	case t.n > 0:
		return &exit.Error{Code: exitFound}
	}
	return nil
}

// lister returns who lists the locks of l, if that may cost what it does.
func (of listing) lister(l locker.Locker) (inspect.Lister, error) {
	lister, ok := locker.As[inspect.Lister](l)
	if !ok {
		return nil, errNoList
	}
	if can, ok := locker.As[backend.Capable](l); ok && !of.paid {
		if price := can.Capabilities().ListPrice; price != "" {
			return nil, exit.With(exit.Usage, fmt.Errorf("a list costs money: %s", price), "--paid lists nevertheless")
		}
	}
	return lister, nil
}

// all yields what is to be shown. What belongs to a key, such as its permits, may have names that begin with a brace.
func (of listing) all(ctx context.Context, l inspect.Lister) iter.Seq2[inspect.Listed, error] {
	braced := "{" + of.prefix
	if strings.HasPrefix(of.prefix, "}") {
		braced = "{#}" + of.prefix
	}
	return func(yield func(inspect.Listed, error) bool) {
		for found, err := range l.List(ctx, of.prefix) {
			if !of.show(found, err, yield) {
				return
			}
		}
		if of.prefix == "" {
			return
		}
		for found, err := range l.List(ctx, braced) {
			key, kind := partOf(found)
			other := kind == kindLock || !strings.HasPrefix(key, of.prefix)
			if (err != nil || !other) && !of.show(found, err, yield) {
				return
			}
		}
	}
}

// show yields each holder of a lock that is to be shown.
func (of listing) show(l inspect.Listed, err error, yield func(inspect.Listed, error) bool) (more bool) {
	if err != nil {
		yield(l, err)
		return false
	}
	holders := l.Holders
	if holders == nil {
		holders = []inspect.Inspection{l.Inspection}
	}
	waiting := l.Waiting
	for _, l.Inspection = range holders {
		l.Waiting = waiting
		if of.shows(l) && !yield(l, nil) {
			return false
		}
	}
	return true
}

func (of listing) shows(l inspect.Listed) bool {
	old := of.heldFor == 0 || l.State != inspect.Kept && (l.Held == 0 || l.Held >= of.heldFor)
	_, kind := partOf(l)
	return old && (!of.waiting || l.Waiting > 0 || kind == kindWaiter)
}

// The kinds that a lock may have.
const (
	kindLock   = "lock"
	kindPermit = "permit"
	kindSlot   = "slot"
	kindReader = "reader"
	kindRaises = "upgradeable reader"
	kindWriter = "writer"
	kindWaiter = "first waiter"
	kindTick   = "tick"
)

// partOf returns the key that a lock belongs to, as programs know it, and what it is of that. Ticks have their own.
func partOf(l inspect.Listed) (key, kind string) {
	if _, _, ok := tick.Parse(l.Key); ok {
		return l.Key, kindTick
	}
	key, what, ok := placename.Parse(l.Key)
	if !ok {
		return l.Key, kindLock
	}
	rest, shared := strings.CutPrefix(what, "rw")
	switch {
	case rest == "gate" || rest == "intent":
		return key, kindWaiter
	case l.Kind == backend.Exclusive.String():
		return key, kindWriter
	case l.Kind == backend.Upgradeable.String():
		return key, kindRaises
	case l.Kind != "":
		return key, kindReader
	case shared:
		return key, kindSlot
	}
	return key, kindPermit
}

// allSlots is how many slots a key of package rwlock has.
const allSlots = 64

// line is a line of the table: a lock, or the places of a key that have one label.
type line struct {
	inspect.Listed
	key, kind string
	places    []string // their numbers
}

func (l *line) kindText() string {
	switch {
	case l.kind == kindSlot && len(l.places) == allSlots:
		return kindWriter
	case len(l.places) > 1 && l.kind != kindWaiter: // that has all gates
		return strconv.Itoa(len(l.places)) + " " + l.kind + "s"
	case l.kind == kindPermit:
		return kindPermit + " " + strings.Join(l.places, "")
	}
	return l.kind
}

// table prints lines in blocks, each by keys and with columns as wide as it needs, so that the first locks are seen
// before the last ones are known, however many there are.
type table struct {
	app    *app
	lines  []line
	since  time.Time // when the block was begun
	titled bool
	n      int // how many locks were added
}

// Sizes of a block.
const (
	maxLines  = 100
	blockTime = 500 * time.Millisecond
)

func (t *table) add(l inspect.Listed) error {
	t.n++
	of := line{Listed: l}
	of.key, of.kind = partOf(l)
	for _, p := range l.Permits {
		of.places = append(of.places, strconv.Itoa(p))
	}
	if l.Kind != "" {
		of.places = []string{l.Owner}
	}
	if of.places == nil && of.kind != kindLock && of.kind != kindTick {
		_, what, _ := placename.Parse(l.Key)
		of.places = []string{strings.TrimPrefix(what, "rw")}
	}
	if t.app.json {
		return t.printJSON(&of)
	}
	at := slices.IndexFunc(t.lines, func(o line) bool {
		return of.places != nil && of.Label != "" && o.key == of.key && o.kind == of.kind && o.Label == of.Label &&
			o.State == of.State
	})
	if at >= 0 {
		o := &t.lines[at]
		for _, p := range of.places { // the store may list a lock twice
			if !slices.Contains(o.places, p) {
				o.places = append(o.places, p)
			}
		}
		o.Held, o.Waiting = max(o.Held, of.Held), max(o.Waiting, of.Waiting)
		return nil
	}
	if len(t.lines) == 0 {
		t.since = time.Now()
	}
	t.lines = append(t.lines, of)
	if len(t.lines) < maxLines && time.Since(t.since) < blockTime {
		return nil
	}
	return t.flush()
}

// listedJSON is a lock of a listing as JSON.
type listedJSON struct {
	lockJSON
	Cut  bool   `json:"cut,omitempty"`
	Kind string `json:"kind"`
	Of   string `json:"of,omitempty"` // the key that it belongs to
}

func (t *table) printJSON(l *line) error {
	j := listedJSON{lockJSON: lockOf(l.Key, l.Inspection), Cut: l.Cut, Kind: l.kind}
	if l.key != l.Key {
		j.Of = l.key
	}
	j.At = &l.At
	e := json.NewEncoder(t.app.stdout)
	e.SetEscapeHTML(false)
	return e.Encode(j)
}

// flush prints the lines of the block.
func (t *table) flush() error {
	var rows [][]string
	if !t.titled && len(t.lines) > 0 {
		rows = append(rows, []string{"key", "kind", "state", "holder", "held for", "free in", "waiting"})
		t.titled = true
	}
	slices.SortStableFunc(t.lines, func(a, b line) int { return strings.Compare(a.key, b.key) })
	for _, l := range t.lines {
		holder, left := l.Owner, span(l.Remaining)
		switch {
		case l.Label != "":
			holder = labelOf(l.Inspection)
		case holder != "":
			holder += "…"
		}
		if l.Seen > 0 {
			left = ""
		}
		rows = append(rows, []string{
			shownKey(l.key, l.Cut), l.kindText(), string(l.State), orDash(holder),
			orDash(strings.Replace(heldFor(l.Inspection), "at least ", ">", 1)), orDash(left), strconv.Itoa(l.Waiting),
		})
	}
	t.lines = t.lines[:0]
	width := 0
	if isTerminal(t.app.stdout) {
		width = columns(t.app.stdout)
	}
	for _, row := range aligned(rows, width) {
		if _, err := fmt.Fprintln(t.app.stdout, row); err != nil {
			return err
		}
	}
	return nil
}

// A terminal that is too narrow for the table gets so much of a key, and then so much of a holder.
const (
	keyColumn, minKey       = 0, 16
	holderColumn, minHolder = 3, 10
)

// aligned returns the lines of a table. If they are too long for a width that is not 0, keys and holders are cut.
func aligned(rows [][]string, width int) []string {
	var widths []int
	total := 0
	for i := 0; len(rows) > 0 && i < len(rows[0]); i++ {
		most := 0
		for _, row := range rows {
			most = max(most, length(row[i]))
		}
		widths = append(widths, most)
		total += most + 2
	}
	total -= 2
	shrink := func(column, least int) {
		if over := total - width; width > 0 && over > 0 {
			to := max(min(least, widths[column]), widths[column]-over)
			total += to - widths[column]
			widths[column] = to
		}
	}
	if len(rows) > 0 {
		shrink(keyColumn, minKey)
		shrink(holderColumn, minHolder)
	}
	lines := make([]string, len(rows))
	for i, row := range rows {
		for n, cell := range row {
			cell = cut(cell, widths[n])
			lines[i] += cell + strings.Repeat(" ", widths[n]-length(cell)+2)
		}
		lines[i] = cut(strings.TrimRight(lines[i], " "), width)
	}
	return lines
}

// length returns how many columns a text takes.
func length(text string) (n int) {
	for _, r := range text {
		n += wide(r)
	}
	return n
}

// shownKey returns a key as one word of printable characters, in quotes if it is none.
func shownKey(key string, isCut bool) string {
	plain := func(r rune) bool { return r != unicode.ReplacementChar && r != '"' && r != ' ' && unicode.IsGraphic(r) }
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return !plain(r) }) {
		key = strconv.Quote(key)
	}
	if isCut {
		key += "…"
	}
	return key
}
