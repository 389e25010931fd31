package cli

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/share/scenario"
)

//go:embed share.html.tmpl
var sharePage embed.FS

// shareMix is a section of the page: a mix with its results and plots.
type shareMix struct {
	Name, About string
	Results     []scenario.Result
	Latency     template.HTML
	Jobs        template.HTML
}

// writeShareHTML writes the comparison as one page without references to other files.
func writeShareHTML(file string, mixes []*scenario.Spec, results []scenario.Result) error {
	var sections []shareMix
	for _, m := range mixes {
		s := shareMix{Name: m.Name, About: m.About}
		for _, r := range results {
			if r.Mix == m.Name {
				s.Results = append(s.Results, r)
			}
		}
		var err error
		if s.Latency, err = latencyPlot(s.Results); err != nil {
			return err
		}
		if s.Jobs, err = jobsPlot(s.Results); err != nil {
			return err
		}
		sections = append(sections, s)
	}
	t, err := template.New("share.html.tmpl").Funcs(template.FuncMap{"percent": percentText}).ParseFS(sharePage, "share.html.tmpl")
	if err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	var page bytes.Buffer
	if err := t.Execute(&page, sections); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return atomicfile.Output(file, page.Bytes(), 0o666)
}

// decades are ticks of a scale of powers of ten, whose values are logarithms.
type decades struct{}

// Ticks implements plot.Ticker.
func (decades) Ticks(low, high float64) []plot.Tick {
	var out []plot.Tick
	for e := math.Floor(low); e <= high; e++ {
		for m := 1.0; m < 10; m++ {
			x := e + math.Log10(m)
			if x < low || x > high {
				continue
			}
			label := ""
			if m == 1 || m == 2 || m == 5 {
				label = fmt.Sprintf("%g", m*math.Pow(10, e))
			}
			out = append(out, plot.Tick{Value: x, Label: label})
		}
	}
	return out
}

// latencyPlot draws the p99 latency of the online clients, on a logarithmic scale.
func latencyPlot(results []scenario.Result) (template.HTML, error) {
	p := newPlot("", "p99 of online clients, times alone", "")
	p.X.Tick.Marker = decades{}
	var values plotter.Values
	for i := len(results) - 1; i >= 0; i-- {
		values = append(values, math.Log10(math.Max(results[i].P99, 1)))
	}
	if err := addBars(p, values, "", orange, 0, 9); err != nil {
		return "", err
	}
	p.X.Min, p.X.Max = 0, math.Max(p.X.Max, 0.35)
	return inlineSVG(p, results)
}

// jobsPlot draws the completed jobs of the online and of the offline clients.
func jobsPlot(results []scenario.Result) (template.HTML, error) {
	p := newPlot("", "completed jobs, % of alone (offline: sum)", "")
	var online, offline plotter.Values
	for i := len(results) - 1; i >= 0; i-- {
		online = append(online, 100*results[i].Online)
		offline = append(offline, 100*results[i].Offline)
	}
	if err := addBars(p, online, "online", orange, 3, 6); err != nil {
		return "", err
	}
	if err := addBars(p, offline, "offline", blue, -3, 6); err != nil {
		return "", err
	}
	p.X.Min = 0
	p.X.Max *= 1.3 // room for the legend
	p.Legend.Left, p.Legend.Top = false, true
	p.Legend.XOffs, p.Legend.YOffs = -vg.Points(6), -vg.Points(6)
	return inlineSVG(p, results)
}

func addBars(p *plot.Plot, values plotter.Values, name string, c color.Color, offset, width vg.Length) error {
	bars, err := plotter.NewBarChart(values, vg.Points(float64(width)))
	if err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	bars.Horizontal, bars.Color, bars.Offset = true, c, vg.Points(float64(offset))
	bars.LineStyle.Width = 0
	p.Add(bars)
	if name != "" {
		p.Legend.Add(name, bars)
	}
	return nil
}

// inlineSVG draws a plot with a line for each policy.
func inlineSVG(p *plot.Plot, results []scenario.Result) (template.HTML, error) {
	var names []string
	for i := len(results) - 1; i >= 0; i-- {
		names = append(names, results[i].Policy)
	}
	p.NominalY(names...)
	c := vgsvg.New(6*vg.Inch, vg.Length(len(names))*20+90)
	page := draw.New(c)
	page.SetColor(color.White)
	page.Fill(page.Path())
	p.Draw(draw.Crop(page, 12, -16, 8, -8))
	var out bytes.Buffer
	if _, err := c.WriteTo(&out); err != nil {
		return "", fmt.Errorf("plot: %w", err)
	}
	_, svg, _ := bytes.Cut(out.Bytes(), []byte("<svg")) // without the XML declaration
	return template.HTML("<svg" + string(svg)), nil     //nolint:gosec // our own drawing
}
