package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Figures are what one visit has measured, by name. Durations are in µs.
type Figures map[string]float64

// Scenario is one kind of load, put on each contestant in turn.
type Scenario struct {
	Name    string
	Title   string
	Note    string
	Columns []Column
	// Primary is the figure whose ratio to the yardstick is shown.
	Primary     string
	Contestants []Contestant
	Time        time.Duration // of one visit
	Rounds      int           // at most; 0: as many as the plan says
}

// Column of a table.
type Column struct {
	Figure string `json:"figure"`
	Title  string `json:"title"`
	Digits int    `json:"-"`
}

// Contestant of a scenario.
type Contestant struct {
	Name      string
	Yardstick string // the contestant it is compared with; "" if there is none
	Rounds    int    // at most, the first ones; 0: all
	Visit     func(ctx context.Context, d time.Duration) (Figures, error)
}

// Result of a scenario.
type Result struct {
	Name    string   `json:"name"`
	Title   string   `json:"title"`
	Note    string   `json:"note"`
	Columns []Column `json:"columns"`
	Primary string   `json:"primary"`
	Rows    []*Row   `json:"rows"`
	Took    float64  `json:"took"` // seconds
}

// Row is one contestant's result.
type Row struct {
	Name      string    `json:"name"`
	Yardstick string    `json:"yardstick,omitempty"`
	Median    Figures   `json:"median"`
	Ratio     float64   `json:"ratio,omitempty"`
	Rounds    []Figures `json:"rounds"` // nil: the visit failed
	Took      float64   `json:"took"`   // seconds, of all visits
	Err       string    `json:"error,omitempty"`
}

// run visits every contestant once in each round, in a new order each time, so that other work of the machine affects
// all contestants alike.
func (s *Scenario) run(ctx context.Context, rounds int, progress func(string, ...any)) (*Result, error) {
	if s.Rounds > 0 {
		rounds = min(rounds, s.Rounds)
	}
	r := &Result{Name: s.Name, Title: s.Title, Note: s.Note, Columns: s.Columns, Primary: s.Primary}
	for _, c := range s.Contestants {
		r.Rows = append(r.Rows, &Row{Name: c.Name, Yardstick: c.Yardstick, Rounds: make([]Figures, rounds)})
	}
	start := time.Now()
	for round := range rounds {
		for _, i := range rand.Perm(len(s.Contestants)) {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			c := s.Contestants[i]
			if c.Rounds > 0 && round >= c.Rounds {
				continue
			}
			progress("%s: round %d of %d: %s", s.Name, round+1, rounds, c.Name)
			visit := time.Now()
			figures, err := c.Visit(ctx, s.Time)
			r.Rows[i].Took += time.Since(visit).Seconds()
			if err != nil {
				r.Rows[i].Err = err.Error()
				continue
			}
			r.Rows[i].Rounds[round] = figures
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	r.Took = time.Since(start).Seconds()
	for _, row := range r.Rows {
		row.Median = medians(row.Rounds)
		row.Ratio, _ = r.ratio(row.Name, row.Yardstick, s.Primary)
	}
	return r, nil
}

func medians(rounds []Figures) Figures {
	values := map[string][]float64{}
	for _, f := range rounds {
		for name, v := range f {
			values[name] = append(values[name], v)
		}
	}
	m := Figures{}
	for name, v := range values {
		m[name] = median(v)
	}
	return m
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	slices.SortFunc(v, cmp.Compare)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func (r *Result) row(name string) *Row {
	if r != nil {
		for _, row := range r.Rows {
			if row.Name == name {
				return row
			}
		}
	}
	return nil
}

// ratio is the median over the rounds of a's figure divided by b's of the same round.
func (r *Result) ratio(a, b, figure string) (float64, bool) {
	x, y := r.row(a), r.row(b)
	if x == nil || y == nil {
		return 0, false
	}
	var ratios []float64
	for i := range x.Rounds {
		if over, under := x.Rounds[i][figure], y.Rounds[i][figure]; over > 0 && under > 0 {
			ratios = append(ratios, over/under)
		}
	}
	if len(ratios) == 0 {
		return 0, false
	}
	return median(ratios), true
}

// best is the name of the contestant of a library, over whichever client, whose median of a figure is largest.
func (r *Result) best(library, figure string) string {
	name, most := "", 0.
	if r != nil {
		for _, row := range r.Rows {
			if v := row.Median[figure]; strings.HasPrefix(row.Name, library+"/") && v > most {
				name, most = row.Name, v
			}
		}
	}
	return name
}

// figure is the median over the rounds.
func (r *Result) figure(name, figure string) (float64, bool) {
	row := r.row(name)
	if row == nil {
		return 0, false
	}
	v, ok := row.Median[figure]
	return v, ok
}

func (c Column) format(v float64, ok bool) string {
	if !ok || math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.*f", c.Digits, v)
}
