package main

import "fmt"

// Budget is a goal for one figure, and the result. goals.go has all of them.
type Budget struct {
	What    string  `json:"what"`
	Limit   float64 `json:"limit"`
	AtLeast bool    `json:"at_least"` // the goal is a minimum; otherwise it is a maximum
	Got     float64 `json:"got"`
	Known   bool    `json:"measured"`
	Unit    string  `json:"unit,omitempty"`
}

func (b Budget) met() bool {
	if b.AtLeast {
		return b.Known && b.Got >= b.Limit
	}
	return b.Known && b.Got <= b.Limit
}

// verdict says whether the goal was met, and by how much.
func (b Budget) verdict() string {
	if !b.Known {
		return "not measured"
	}
	by := ""
	switch gap := max(b.Got, b.Limit) - min(b.Got, b.Limit); {
	case gap == 0:
	case b.Limit != 0:
		by = fmt.Sprintf(" by %.0f %%", 100*gap/b.Limit)
	default:
		by = fmt.Sprintf(" by %.4g", gap)
	}
	if b.met() {
		return "met" + by
	}
	return "MISSED" + by
}

func (b Budget) want() string {
	if b.AtLeast {
		return fmt.Sprintf("≥ %.4g%s", b.Limit, b.Unit)
	}
	return fmt.Sprintf("≤ %.4g%s", b.Limit, b.Unit)
}

func (b Budget) got() string {
	if !b.Known {
		return "–"
	}
	return fmt.Sprintf("%.4g%s", b.Got, b.Unit)
}
