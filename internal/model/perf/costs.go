package perf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Term is the time added to an operation as a function of ΔRTT: Fixed + Slope x ΔRTT
// from Knee upwards, and below Knee a straight line from zero to that value. It is
// zero at a ΔRTT of zero and never decreases.
type Term struct {
	Slope float64       `json:"slope"`
	Fixed time.Duration `json:"fixed_ns"`
	// Knee is the smallest ΔRTT at which Fixed was fitted; zero if Fixed is zero.
	Knee time.Duration `json:"knee_ns"`
}

// At returns the added time, which is never negative.
func (t Term) At(delta time.Duration) time.Duration {
	if delta <= 0 {
		return 0
	}
	d := float64(delta)
	v := t.Slope*d + float64(t.Fixed)
	if delta < t.Knee {
		knee := float64(t.Knee)
		v = d / knee * (t.Slope*knee + float64(t.Fixed))
	}
	return time.Duration(max(v, 0))
}

// Costs holds the time added to each kind of operation. Kernel, GraphNode, Memset,
// HtoD, DtoH and OnDevice (copies within a GPU and between GPUs) occupy the stream. Launch lies between a launch call and the
// earliest start of its work, Sync between the end of the work and the return of a
// waiting call.
type Costs struct {
	Name        string `json:"name"`
	Source      string `json:"source"`
	Kernel      Term   `json:"kernel"`
	GraphNode   Term   `json:"graph_node"`
	Memset      Term   `json:"memset"`
	HtoD        Term   `json:"copy_to_device"`
	DtoH        Term   `json:"copy_to_host"`
	OnDevice    Term   `json:"copy_on_device"`
	Launch      Term   `json:"launch"`
	GraphLaunch Term   `json:"graph_launch"`
	Sync        Term   `json:"wait"`
}

// KernelCosts returns the costs of hardware whose kernels cost kernel. Memsets and
// copies on a device are commands of the same kind. Copies between host and device are
// those of section 3.4.1. A launch's doorbell and the write that ends a wait are posted
// and cross the network once: half a round trip. The nodes of a graph do not depend on
// the host.
func KernelCosts(name, source string, kernel Term) Costs {
	one, half := Term{Slope: 1}, Term{Slope: 0.5}
	return Costs{
		Name: name, Source: source,
		Kernel: kernel, Memset: kernel, OnDevice: kernel, HtoD: one, DtoH: half,
		Launch: half, GraphLaunch: Term{Slope: kernel.Slope + half.Slope, Fixed: kernel.Fixed, Knee: kernel.Knee}, Sync: half,
	}
}

// Limits of Costs from a file: a thousand round trips, and a second.
const (
	maxSlope = 1000
	maxFixed = time.Second
)

// ReadCosts reads costs as JSON, as "dxpu model fit" writes them. It refuses unknown
// names and values that are negative or absurd.
func ReadCosts(r io.Reader) (Costs, error) {
	const most = 64 << 10
	var c Costs
	d := json.NewDecoder(io.LimitReader(r, most))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("perf: costs: want a file of \"dxpu model fit\": %w", err)
	}
	for _, t := range [...]struct {
		name string
		term Term
	}{
		{"kernel", c.Kernel},
		{"graph_node", c.GraphNode},
		{"memset", c.Memset},
		{"copy_to_device", c.HtoD},
		{"copy_to_host", c.DtoH},
		{"copy_on_device", c.OnDevice},
		{"launch", c.Launch},
		{"graph_launch", c.GraphLaunch},
		{"wait", c.Sync},
	} {
		if t.term.Slope < 0 || t.term.Slope > maxSlope || t.term.Fixed < 0 || t.term.Fixed > maxFixed || t.term.Knee < 0 || t.term.Knee > maxFixed {
			return c, fmt.Errorf("perf: costs: %s: slope %v, fixed %v, knee %v: want a slope of 0 to %d, and times of 0 to %v", t.name, t.term.Slope, t.term.Fixed, t.term.Knee, maxSlope, maxFixed)
		}
	}
	if c.Name == "" {
		return c, errors.New(`perf: costs: "name" is missing`)
	}
	return c, nil
}

// PaperCosts returns the model of section 3.4.1 as the driver library injects it by
// default: one ΔRTT for each kernel, memset and copy to the device, and half of it
// for each copy to the host. The paper does not mention CUDA graphs, whose launch is
// one command: one ΔRTT. Nor does it mention copies that stay on the device.
func PaperCosts() Costs {
	one, half := Term{Slope: 1}, Term{Slope: 0.5}
	return Costs{
		Name: "paper", Source: "section 3.4.1: one dRTT per kernel, memset and copy to the device, half per copy to the host",
		Kernel: one, Memset: one, HtoD: one, DtoH: half, GraphLaunch: one,
	}
}
