package main

import (
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// shades are the colours of a library over go-redis, over redigo, and over rueidis.
type shades [3]color.RGBA

var (
	blues  = shades{{0x1f, 0x83, 0xd6, 0xff}, {0x6d, 0xb6, 0xf0, 0xff}, {0x08, 0x3d, 0x77, 0xff}}
	ochres = shades{{0xe0, 0x7b, 0x1a, 0xff}, {0xf2, 0xb0, 0x5c, 0xff}, {0x8c, 0x45, 0x06, 0xff}}
	greys  = shades{{0x78, 0x78, 0x78, 0xff}, {0xa8, 0xa8, 0xa8, 0xff}, {0x20, 0x20, 0x20, 0xff}}
	green  = color.RGBA{0x3a, 0x9a, 0x4a, 0xff}
	purple = color.RGBA{0x8a, 0x4f, 0xb0, 0xff}
)

// colourOf tells apart this library, its yardsticks and the others, and their clients.
func colourOf(name string) color.Color {
	library, over, _ := strings.Cut(name, "/")
	client := max(0, slices.IndexFunc(clients, func(c string) bool { return strings.HasPrefix(over, c) }))
	switch library {
	case "locker":
		return blues[client]
	case "redsync":
		return ochres[client]
	case "redislock":
		return green
	case "rueidislock":
		return purple
	}
	return greys[client]
}

// thousands labels ticks from 1,000 on as 1k, 10k and so on.
type thousands struct{ plot.Ticker }

func (t thousands) Ticks(low, high float64) []plot.Tick {
	ticks := t.Ticker.Ticks(low, high)
	for i := range ticks {
		if !ticks[i].IsMinor() {
			ticks[i].Label = brief(ticks[i].Value)
		}
	}
	return ticks
}

func brief(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.4gk", v/1000)
	}
	return fmt.Sprintf("%.4g", v)
}

// plot draws each scenario's main figure as bars, and throughput over goroutines as lines, as SVG.
func (r *Report) plot(dir string, rtts []time.Duration) error {
	for _, result := range r.Results {
		if err := result.plotBars(filepath.Join(dir, result.Name+".svg")); err != nil {
			return fmt.Errorf("plot of %s: %w", result.Name, err)
		}
	}
	for _, rtt := range rtts {
		if err := r.plotThroughput(filepath.Join(dir, "throughput"+suffix(rtt)+".svg"), rtt); err != nil {
			return err
		}
	}
	return nil
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
	p.X.Min, p.X.Max, p.X.Tick.Marker = 0, 1.12*longest, thousands{plot.DefaultTicks{}}
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
