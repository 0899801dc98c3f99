package main

import (
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Colours of the contestants: this library, its yardsticks, the others.
var (
	blue   = color.RGBA{0x1f, 0x6f, 0xb4, 0xff}
	grey   = color.RGBA{0x80, 0x80, 0x80, 0xff}
	ochre  = color.RGBA{0xd9, 0x94, 0x2f, 0xff}
	green  = color.RGBA{0x4d, 0x9a, 0x4d, 0xff}
	purple = color.RGBA{0x8a, 0x5a, 0xa8, 0xff}
)

func colourOf(name string) color.Color {
	switch kind, _, _ := strings.Cut(name, "/"); kind {
	case "locker":
		return blue
	case "redsync":
		return ochre
	case "redislock":
		return green
	case "rueidislock":
		return purple
	}
	return grey
}

// plot draws each scenario's main figure as bars, and throughput over goroutines as lines, as SVG.
func (r *Report) plot(dir string) error {
	for _, result := range r.Results {
		if err := result.plotBars(filepath.Join(dir, result.Name+".svg")); err != nil {
			return fmt.Errorf("plot of %s: %w", result.Name, err)
		}
	}
	return r.plotThroughput(filepath.Join(dir, "throughput.svg"))
}

func (r *Result) plotBars(path string) error {
	p := plot.New()
	p.Title.Text = r.Title
	p.X.Label.Text = r.Primary
	for _, c := range r.Columns {
		if c.Figure == r.Primary {
			p.X.Label.Text = c.Title
		}
	}
	values := make([]float64, len(r.Rows))
	for i, row := range r.Rows {
		if v := row.Median[r.Primary]; !math.IsNaN(v) {
			values[i] = v
		}
	}
	longest := longestBar(values)
	p.X.Min, p.X.Max = 0, 1.12*longest
	p.Title.Padding = vg.Points(8)
	n := len(r.Rows)
	names := make([]string, n)
	labels := plotter.XYLabels{XYs: make(plotter.XYs, n), Labels: make([]string, n)}
	for i, row := range r.Rows {
		y := float64(n - 1 - i) // the first on top
		bar, err := plotter.NewBarChart(plotter.Values{min(values[i], longest)}, vg.Points(12))
		if err != nil {
			return err
		}
		bar.Horizontal, bar.Color, bar.LineStyle.Width, bar.XMin = true, colourOf(row.Name), 0, y
		p.Add(bar)
		names[n-1-i] = "   " + row.Name
		labels.XYs[i] = plotter.XY{X: min(values[i], longest), Y: y}
		labels.Labels[i] = fmt.Sprintf(" %.4g", values[i])
		if values[i] >= 1000 {
			labels.Labels[i] = fmt.Sprintf(" %.0f", values[i])
		}
	}
	text, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	for i := range text.TextStyle {
		text.TextStyle[i].YAlign = draw.YCenter
	}
	p.Add(text)
	p.NominalY(names...)
	return p.Save(24*vg.Centimeter, vg.Length(2.5+0.65*float64(n))*vg.Centimeter, path)
}

// longestBar cuts off a bar that would make all others invisible. The number beside the bar has its length.
func longestBar(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	for i := len(sorted) - 1; i > 0; i-- {
		if sorted[i-1] == 0 || sorted[i] < 10*sorted[i-1] {
			return max(sorted[i], 1e-3)
		}
	}
	return max(sorted[0], 1e-3)
}

func (r *Report) plotThroughput(path string) error {
	p := plot.New()
	p.Title.Text = "Lock and unlock, each goroutine its own key"
	p.X.Label.Text, p.Y.Label.Text = "goroutines", "cycles/s"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.ConstantTicks{}
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs = true, true, vg.Points(12)
	p.Title.Padding, p.Y.Min = vg.Points(8), 0
	lines := map[string]plotter.XYs{}
	var order []string
	var ticks plot.ConstantTicks
	for _, size := range append([]int{1}, r.Plan.Sizes...) {
		name := fmt.Sprintf("own-keys-%d", size)
		if size == 1 {
			name = "one-goroutine"
		}
		found := false
		for _, result := range r.Results {
			if result.Name != name {
				continue
			}
			found = true
			for _, row := range result.Rows {
				who, client, over := strings.Cut(row.Name, "/")
				if over && !slices.Contains(clients, client) {
					continue // the plot would have too many lines; contestants over old clients say little
				}
				if rate := row.Median["rate"]; rate > 0 && who != "Driver.Do" {
					if lines[row.Name] == nil {
						order = append(order, row.Name)
					}
					lines[row.Name] = append(lines[row.Name], plotter.XY{X: float64(size), Y: rate})
				}
			}
		}
		if found {
			ticks = append(ticks, plot.Tick{Value: float64(size), Label: fmt.Sprint(size)})
		}
	}
	if len(ticks) < 2 {
		return nil
	}
	p.X.Tick.Marker = ticks
	dashes := map[string][]vg.Length{"goredis": nil, "redigo": {vg.Points(6), vg.Points(3)}, "rueidis": {vg.Points(2), vg.Points(2)}}
	for _, name := range order {
		line, points, err := plotter.NewLinePoints(lines[name])
		if err != nil {
			return err
		}
		_, client, _ := strings.Cut(name, "/")
		line.Color, points.Color = colourOf(name), colourOf(name)
		line.Width, line.Dashes = vg.Points(1.5), dashes[client]
		p.Add(line, points)
		p.Legend.Add(name, line, points)
	}
	p.Add(plotter.NewGrid())
	return p.Save(22*vg.Centimeter, 14*vg.Centimeter, path)
}
