package web

import (
	"fmt"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// chartSamples is the number of points of the chart of a day: one in six minutes.
const chartSamples = 240

// chart is the occupancy and the use of the pool over the last day, as areas of an
// image that is 1000 wide and 100 high.
type chart struct {
	Bound, Busy string // paths: GPUs in leases, and of these with traffic
	Top         uint32 // the number of GPUs at the upper edge
	From, To    *timestamppb.Timestamp
	MostBound   uint32
}

// Words describes the chart for readers who do not see it.
func (c *chart) Words() string {
	return fmt.Sprintf("At most %s were in leases at a time.", plural(c.MostBound, "GPU"))
}

// newChart returns a chart of samples, nil for fewer than two.
func newChart(samples []*dxpuv1.PoolSample) *chart {
	if len(samples) < 2 {
		return nil
	}
	c := &chart{From: samples[0].Time, To: samples[len(samples)-1].Time, Top: 1}
	for _, s := range samples {
		c.Top, c.MostBound = max(c.Top, s.Gpus), max(c.MostBound, s.GpusBound)
	}
	c.Bound = c.area(samples, (*dxpuv1.PoolSample).GetGpusBound)
	c.Busy = c.area(samples, (*dxpuv1.PoolSample).GetGpusBusy)
	return c
}

// area returns the path of the area below a line. A time in which no manager led is a gap.
func (c *chart) area(samples []*dxpuv1.PoolSample, value func(*dxpuv1.PoolSample) uint32) string {
	from, to := c.From.AsTime(), c.To.AsTime()
	width := max(to.Sub(from).Seconds(), 1)
	usual := width / float64(len(samples)-1)
	var b strings.Builder
	end := 0.0
	for i, s := range samples {
		at := s.Time.AsTime().Sub(from).Seconds()
		x := 1000 * at / width
		y := 100 - 100*float64(min(value(s), c.Top))/float64(c.Top)
		if i == 0 || at-samples[i-1].Time.AsTime().Sub(from).Seconds() > 3*usual {
			if i > 0 {
				b.WriteString(" L" + coordinate(end) + " 100 Z ")
			}
			b.WriteString("M" + coordinate(x) + " 100")
		}
		b.WriteString(" L" + coordinate(x) + " " + coordinate(y))
		end = x
	}
	b.WriteString(" L" + coordinate(end) + " 100 Z")
	return b.String()
}

func coordinate(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

// allowedOrUnknown returns err, or nil if err says that the viewer has no access or that
// the manager is too old for the call.
func allowedOrUnknown(err error) error {
	if connect.CodeOf(err) == connect.CodeUnimplemented {
		return nil
	}
	return allowed(err)
}
