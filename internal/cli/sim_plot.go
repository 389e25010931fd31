//go:build linux

package cli

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"image/color"
	"os"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/dxpu-project/dxpu/internal/model/cluster"
)

//go:embed sim.html.tmpl
var simPage embed.FS

// simColours tell lines apart, also for the common kinds of colour blindness (Okabe and
// Ito); after them the dashes change.
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
	var plots []template.HTML
	for i := range r.Plots {
		svg, err := simPlot(&r.Plots[i])
		if err != nil {
			return err
		}
		plots = append(plots, svg)
	}
	t, err := template.ParseFS(simPage, "sim.html.tmpl")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var page bytes.Buffer
	if err := t.Execute(&page, struct {
		*cluster.Report
		Drawings []template.HTML
	}{r, plots}); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return os.WriteFile(file, page.Bytes(), 0o666)
}

// simPlot draws lines with their names beside them.
func simPlot(p *cluster.Plot) (template.HTML, error) {
	drawing := newPlot(p.Title, p.X, p.Y)
	drawing.Legend.Left, drawing.Legend.Top = false, false
	drawing.Legend.XOffs, drawing.Legend.YOffs = vg.Points(-6), vg.Points(6)
	for i, l := range p.Lines {
		var points plotter.XYs
		for k := range l.X {
			points = append(points, plotter.XY{X: l.X[k], Y: l.Y[k]})
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return "", fmt.Errorf("report: %w", err)
		}
		c := simColours[i%len(simColours)]
		line.Color, line.Width, dots.Color = c, vg.Points(1.5), c
		if i >= len(simColours) {
			line.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
		}
		dots.Shape, dots.Radius = draw.CircleGlyph{}, vg.Points(1.5)
		drawing.Add(line)
		if len(points) < 30 {
			drawing.Add(dots)
		}
		drawing.Legend.Add(l.Name, line)
	}
	c := vgsvg.New(7*vg.Inch, 4.5*vg.Inch)
	page := draw.New(c)
	page.SetColor(color.White)
	page.Fill(page.Path())
	drawing.Draw(draw.Crop(page, 12, -16, 8, -8))
	var out bytes.Buffer
	if _, err := c.WriteTo(&out); err != nil {
		return "", fmt.Errorf("report: %w", err)
	}
	_, svg, _ := bytes.Cut(out.Bytes(), []byte("<svg")) // without the XML declaration
	return template.HTML("<svg" + string(svg)), nil     //nolint:gosec // our own drawing
}
