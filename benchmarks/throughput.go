package main

import (
	"cmp"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// curve is one contestant's throughput over the number of goroutines.
type curve struct {
	name   string
	points plotter.XYs
}

func (c curve) last() float64 { return c.points[len(c.points)-1].Y }

// plotThroughput draws cycles per second over the number of goroutines. The legend is beside the plot, in the order in
// which the lines end.
func (r *Report) plotThroughput(path string, rtt time.Duration) error {
	sizes, curves := r.throughput(rtt)
	if len(sizes) < 2 {
		return nil
	}
	p := plot.New()
	p.Title.Text, p.Title.Padding = "Lock and unlock, each goroutine its own key"+inWords(rtt), vg.Points(8)
	p.X.Label.Text, p.Y.Label.Text = "goroutines", "cycles/s"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	var ticks plot.ConstantTicks
	for _, size := range sizes {
		ticks = append(ticks, plot.Tick{Value: float64(size), Label: fmt.Sprint(size)})
	}
	p.X.Tick.Marker = ticks
	p.Add(plotter.NewGrid())
	legend := plot.NewLegend()
	legend.Top, legend.Left, legend.Padding = true, true, vg.Points(4)
	legend.ThumbnailWidth = vg.Points(36)
	low, high := math.Inf(1), 0.
	for _, c := range curves {
		line, points, err := plotter.NewLinePoints(c.points)
		if err != nil {
			return err
		}
		_, client, _ := strings.Cut(c.name, "/")
		line.Color, line.Width, line.Dashes = colourOf(c.name), vg.Points(1.8), dashes[client]
		points.Color, points.Radius, points.Shape = colourOf(c.name), vg.Points(3), draw.CircleGlyph{}
		if glyph, ok := glyphs[client]; ok {
			points.Shape = glyph
		}
		p.Add(line, points)
		legend.Add(c.name, line, points)
		for _, point := range c.points {
			low, high = min(low, point.Y), max(high, point.Y)
		}
	}
	ticks = logTicks(low, high)
	p.Y.Tick.Marker, p.Y.Min, p.Y.Max = ticks, ticks[0].Value, ticks[len(ticks)-1].Value
	return saveWithLegend(p, legend, path)
}

var (
	dashes = map[string][]vg.Length{
		"goredis": {vg.Points(6), vg.Points(3)}, "redigo": {vg.Points(2), vg.Points(2)},
	}
	glyphs = map[string]draw.GlyphDrawer{"goredis": draw.BoxGlyph{}, "redigo": draw.PyramidGlyph{}}
)

// throughput returns the numbers of goroutines that were measured, and a curve for each contestant.
func (r *Report) throughput(rtt time.Duration) (sizes []int, curves []curve) {
	for _, size := range append([]int{1}, r.Plan.Sizes...) {
		name := ownKeysName(size)
		if size == 1 {
			name = "one-goroutine"
		}
		for _, result := range r.Results {
			if result.Name != name+suffix(rtt) {
				continue
			}
			sizes = append(sizes, size)
			for _, row := range result.Rows {
				library, client, over := strings.Cut(row.Name, "/")
				rate := row.Median["rate"]
				// Contestants over old clients would be too many lines and say little.
				if library == "Driver.Do" || over && !slices.Contains(clients, client) || rate <= 0 {
					continue
				}
				i := slices.IndexFunc(curves, func(c curve) bool { return c.name == row.Name })
				if i < 0 {
					i, curves = len(curves), append(curves, curve{name: row.Name})
				}
				curves[i].points = append(curves[i].points, plotter.XY{X: float64(size), Y: rate})
			}
		}
	}
	slices.SortStableFunc(curves, func(a, b curve) int { return cmp.Compare(b.last(), a.last()) })
	return sizes, curves
}

// logTicks are at 1, 2 and 5 times the powers of ten. The first is at most low, the last at least high.
func logTicks(low, high float64) (ticks plot.ConstantTicks) {
	for power := math.Pow10(int(math.Floor(math.Log10(low)))); ; power *= 10 {
		for _, step := range []float64{1, 2, 5} {
			v := step * power
			if v <= low {
				ticks = nil
			}
			ticks = append(ticks, plot.Tick{Value: v, Label: brief(v)})
			if v >= high {
				return ticks
			}
		}
	}
}

// saveWithLegend writes a file of the format that its name ends in, with the legend to the right of the plot.
func saveWithLegend(p *plot.Plot, legend plot.Legend, path string) error {
	const width, height, beside = 26 * vg.Centimeter, 15 * vg.Centimeter, 6 * vg.Centimeter
	canvas, err := draw.NewFormattedCanvas(width, height, strings.TrimPrefix(filepath.Ext(path), "."))
	if err != nil {
		return err
	}
	page := draw.New(canvas)
	page.SetColor(color.White)
	page.Fill(page.Rectangle.Path())
	p.Draw(draw.Crop(page, 0, -beside, 0, -vg.Points(4)))
	legend.Draw(draw.Crop(page, width-beside+vg.Points(16), 0, 0, -vg.Points(30)))
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(f)
	return cmp.Or(err, f.Close())
}
