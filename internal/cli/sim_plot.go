//go:build linux

package cli

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"image/color"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/model/cluster"
)

//go:embed sim.html.tmpl
var simPage embed.FS

// simColours tell lines apart, also for the common kinds of colour blindness (Okabe and
// Ito); after them the lines are dashed.
var simColours = []color.Color{
	orange, blue,
	color.RGBA{0x00, 0x9e, 0x73, 0xff},
	color.RGBA{0xcc, 0x79, 0xa7, 0xff},
	color.RGBA{0xe6, 0x9f, 0x00, 0xff},
	color.RGBA{0x56, 0xb4, 0xe9, 0xff},
	color.RGBA{0x33, 0x33, 0x33, 0xff},
}

// writeSimReport writes the report as one page without references to other files.
func writeSimReport(file string, r *cluster.Report) error {
	var plots []simDrawing
	for i := range r.Plots {
		d, err := simPlot(&r.Plots[i])
		if err != nil {
			return err
		}
		plots = append(plots, d)
	}
	t, err := template.ParseFS(simPage, "sim.html.tmpl")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var page bytes.Buffer
	if err := t.Execute(&page, struct {
		*cluster.Report
		Drawings []simDrawing
	}{r, plots}); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return atomicfile.Output(file, page.Bytes(), 0o666)
}

// simDrawing is a plot, and the names of its lines, which stand below it: inside they would
// cover lines.
type simDrawing struct {
	SVG   template.HTML
	Lines []simLegend
}

type simLegend struct{ Name, Colour, Style string }

// shortTicks are the default ticks, whose labels end without zeros behind the point.
type shortTicks struct{ plot.DefaultTicks }

// Ticks implements plot.Ticker.
func (t shortTicks) Ticks(low, high float64) []plot.Tick {
	ticks := t.DefaultTicks.Ticks(low, high)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = strconv.FormatFloat(ticks[i].Value, 'g', 6, 64)
		}
	}
	return ticks
}

// simPlot draws lines.
func simPlot(p *cluster.Plot) (out simDrawing, err error) {
	drawing := newPlot(p.Title, p.X, p.Y)
	drawing.X.Tick.Marker, drawing.Y.Tick.Marker = shortTicks{}, shortTicks{}
	colour := -1
	for i, l := range p.Lines {
		if !l.Second {
			colour++
		}
		var points plotter.XYs
		for k := range l.X {
			points = append(points, plotter.XY{X: l.X[k], Y: l.Y[k]})
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return out, fmt.Errorf("report: %w", err)
		}
		c := simColours[colour%len(simColours)]
		line.Color, line.Width, dots.Color = c, vg.Points(1.5), c
		style := "solid"
		switch hides := slices.ContainsFunc(p.Lines[:i], func(o cluster.Line) bool { return l.Covers(&o) }); {
		case hides: // short dashes, between which the other line is seen
			style = "dotted"
			line.Dashes = []vg.Length{vg.Points(3), vg.Points(4)}
		case l.Second || colour >= len(simColours):
			style = "dashed"
			line.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
		}
		if p.Steps {
			line.StepStyle = plotter.PostStep
		}
		dots.Shape, dots.Radius = draw.CircleGlyph{}, vg.Points(1.5)
		drawing.Add(line)
		if len(points) < 30 {
			drawing.Add(dots)
		}
		red, green, blue, _ := c.RGBA()
		out.Lines = append(out.Lines, simLegend{l.Name, fmt.Sprintf("#%02x%02x%02x", red>>8, green>>8, blue>>8), style})
	}
	c := vgsvg.New(7*vg.Inch, 4.5*vg.Inch)
	page := draw.New(c)
	page.SetColor(color.White)
	page.Fill(page.Path())
	drawing.Draw(draw.Crop(page, 12, -16, 8, -8))
	var text bytes.Buffer
	if _, err := c.WriteTo(&text); err != nil {
		return out, fmt.Errorf("report: %w", err)
	}
	_, svg, _ := bytes.Cut(text.Bytes(), []byte("<svg")) // without the XML declaration
	out.SVG = template.HTML("<svg" + string(svg))        //nolint:gosec // our own drawing
	return out, nil
}
