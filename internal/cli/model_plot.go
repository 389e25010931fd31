package cli

import (
	"bytes"
	"fmt"
	"image/color"
	"path/filepath"
	"time"

	"github.com/guptarohit/asciigraph"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/model/predict"
)

// Colours of Okabe and Ito, which are distinct for the common kinds of colour blindness.
var (
	blue   = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	orange = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	grey   = color.RGBA{0x99, 0x99, 0x99, 0xff}
)

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// plotSweep draws both curves in characters. It interpolates the curves, because the
// columns are evenly spaced in time and the points of the sweep are not.
func plotSweep(rs []predict.Result, colours bool) string {
	const columns, lines = 60, 15
	if len(rs) < 2 || rs[len(rs)-1].RTT <= rs[0].RTT {
		return "a plot needs a sweep of two or more ascending round trips"
	}
	from, to := us(rs[0].RTT), us(rs[len(rs)-1].RTT)
	replay, additive := make([]float64, columns), make([]float64, columns)
	for i := range columns {
		x := from + (to-from)*float64(i)/(columns-1)
		replay[i] = 100 * interpolate(rs, x, func(r *predict.Result) float64 { return r.Relative })
		additive[i] = 100 * interpolate(rs, x, func(r *predict.Result) float64 { return r.Additive.Relative })
	}
	curves := asciigraph.SeriesChars(asciigraph.CreateCharSet("+"), asciigraph.CreateCharSet("*"))
	legend := "\n   + additive estimate   * replay"
	if colours {
		curves, legend = asciigraph.SeriesColors(asciigraph.Red, asciigraph.Blue), ""
	}
	options := []asciigraph.Option{
		asciigraph.Height(lines), asciigraph.Precision(1), asciigraph.UpperBound(100),
		asciigraph.XAxisRange(from, to), asciigraph.XAxisTickCount(7),
		asciigraph.XAxisValueFormatter(func(v float64) string { return fmt.Sprintf("%.1f", v) }),
		asciigraph.Caption("% of native performance against round trip in us"), curves,
	}
	if colours {
		options = append(options, asciigraph.SeriesLegends("additive estimate", "replay"))
	}
	return asciigraph.PlotMany([][]float64{additive, replay}, options...) + legend
}

// interpolate returns the value of a curve between its points.
func interpolate(rs []predict.Result, x float64, f func(*predict.Result) float64) float64 {
	for i := 1; i < len(rs); i++ {
		a, b := us(rs[i-1].RTT), us(rs[i].RTT)
		if x <= b && b > a {
			k := (x - a) / (b - a)
			return f(&rs[i-1])*(1-k) + f(&rs[i])*k
		}
	}
	return f(&rs[len(rs)-1])
}

// writeSweepSVG draws performance against round trip, like Figure 4.
func writeSweepSVG(file string, a *analysis) error {
	p := newPlot("Performance over the round trip: "+filepath.Base(a.file), "round trip of a PCIe memory read (us)", "performance (% of native)")
	p.Y.Max = 100
	add := func(name string, c color.Color, f func(*predict.Result) float64) error {
		var pts plotter.XYs
		for i := range a.sweep {
			pts = append(pts, plotter.XY{X: us(a.sweep[i].RTT), Y: 100 * f(&a.sweep[i])})
		}
		line, dots, err := plotter.NewLinePoints(pts)
		if err != nil {
			return fmt.Errorf("plot: %w", err)
		}
		line.Width = vg.Points(1.5)
		line.Color, dots.Color = c, c
		p.Add(line, dots)
		p.Legend.Add(name, line)
		return nil
	}
	err := add("replay, "+a.setting.Costs.Name+" costs", blue, func(r *predict.Result) float64 { return r.Relative })
	if err == nil {
		err = add("additive estimate", orange, func(r *predict.Result) float64 { return r.Additive.Relative })
	}
	if err != nil {
		return err
	}
	return save(p, file)
}

// writeCDFSVG draws the distributions of kernel duration, like Figures 5 and 6.
func writeCDFSVG(file string, a *analysis) error {
	p := newPlot("Kernel durations: "+filepath.Base(a.file), "kernel duration (us)", "share of kernels (%)")
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Min, p.Y.Max = 0, 100
	byNumber, byTime := plotter.XYs{}, plotter.XYs{}
	for _, d := range a.stats.Durations {
		x := max(us(d.Duration), 0.1) // the scale is logarithmic
		byNumber = append(byNumber, plotter.XY{X: x, Y: 100 * d.ByNumber})
		byTime = append(byTime, plotter.XY{X: x, Y: 100 * d.ByTime})
	}
	if len(byNumber) == 0 {
		return fmt.Errorf("plot: %s: the trace holds no kernels", file)
	}
	x := us(predict.ShortKernel)
	for _, c := range []struct {
		name string
		pts  plotter.XYs
		draw.LineStyle
	}{
		{"by number", byNumber, draw.LineStyle{Color: blue, Width: vg.Points(1.5)}},
		{"by time", byTime, draw.LineStyle{Color: orange, Width: vg.Points(1.5)}},
		{"10 us: short", plotter.XYs{{X: x, Y: 0}, {X: x, Y: 100}}, draw.LineStyle{Color: grey, Width: vg.Points(1), Dashes: []vg.Length{vg.Points(3), vg.Points(3)}}},
	} {
		line, err := plotter.NewLine(c.pts)
		if err != nil {
			return fmt.Errorf("plot: %w", err)
		}
		line.StepStyle, line.LineStyle = plotter.PostStep, c.LineStyle
		p.Add(line)
		p.Legend.Add(c.name, line)
	}
	p.Legend.Top = true
	p.Legend.YOffs = -p.Legend.YOffs
	return save(p, file)
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(8)
	for _, style := range []*text.Style{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		style.Font.Variant = "Sans"
	}
	p.Add(plotter.NewGrid())
	p.Legend.Left = true
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(6), vg.Points(6)
	return p
}

// save writes the plot with a margin: the labels of the last ticks extend beyond the
// plot's area, and viewers without its font draw wider text.
func save(p *plot.Plot, file string) error {
	const margin = 16
	if filepath.Ext(file) != ".svg" {
		return usagef("plot: %s: want a name that ends in .svg", file)
	}
	c := vgsvg.New(7*vg.Inch, 4.5*vg.Inch)
	page := draw.New(c)
	page.SetColor(color.White)
	page.Fill(page.Path())
	p.Draw(draw.Crop(page, margin, -margin, margin, -margin))
	var drawing bytes.Buffer
	if _, err := c.WriteTo(&drawing); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	if err := atomicfile.Output(file, drawing.Bytes(), 0o666); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}
