package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// cells of the table of r: headings, then a line for each contestant.
func (r *Result) cells() [][]string {
	head := []string{"contestant", "ratio"}
	for _, c := range r.Columns {
		head = append(head, c.Title)
	}
	table := [][]string{head}
	for _, row := range r.Rows {
		ratio := "–"
		if row.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f×", row.Ratio)
		}
		line := []string{row.Name, ratio}
		for _, c := range r.Columns {
			v, ok := row.Median[c.Figure]
			line = append(line, c.format(v, ok))
		}
		table = append(table, line)
	}
	return table
}

func budgetCells(list []Budget) [][]string {
	table := [][]string{{"budget", "want", "got", "verdict"}}
	for _, b := range list {
		table = append(table, []string{b.What, b.want(), b.got(), b.verdict()})
	}
	return table
}

// writeTable aligns the columns: the first to the left, the others to the right.
func writeTable(w io.Writer, table [][]string) {
	widths := make([]int, len(table[0]))
	for _, line := range table {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, line := range table {
		for i, cell := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				fmt.Fprint(w, cell, pad)
			} else {
				fmt.Fprint(w, "  ", pad, cell)
			}
		}
		fmt.Fprintln(w)
	}
}

func writeMarkdownTable(w io.Writer, table [][]string) {
	for i, line := range table {
		fmt.Fprintln(w, "| "+strings.Join(line, " | ")+" |")
		if i == 0 {
			fmt.Fprintln(w, "| ---"+strings.Repeat(" | ---:", len(line)-1)+" |")
		}
	}
	fmt.Fprintln(w)
}

func (r *Result) write(w io.Writer) {
	fmt.Fprintf(w, "\n%s (%s, %.0f s)\n", r.Title, r.Name, r.Took)
	writeTable(w, r.cells())
	for _, row := range r.Rows {
		if row.Err != "" {
			fmt.Fprintf(w, "! %s: a visit failed: %s\n", row.Name, row.Err)
		}
	}
	fmt.Fprintln(w, r.Note)
}
