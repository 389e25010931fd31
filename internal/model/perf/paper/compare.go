package paper

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/dxpu-project/dxpu/internal/model/perf"
)

// Use is the role of a figure of the paper in the model.
type Use string

// Uses.
const (
	Input   Use = "input"      // an input of the model
	FitUse  Use = "fitted"     // a constant was fitted to it and others
	Checked Use = "checked"    // the model does not use it
	Bound   Use = "bound"      // the model gives only an upper bound
	Derived Use = "arithmetic" // follows from inputs without the model
	Unknown Use = "not enough input given"
)

// Row is one figure of the paper with the model's value.
type Row struct {
	Where string  `json:"where"` // table or figure
	What  string  `json:"what"`
	Unit  string  `json:"unit"` // "%", "GB/s", "us"
	Paper float64 `json:"paper"`
	Model float64 `json:"model"` // 0 if Use is Input or Unknown
	Use   Use     `json:"use"`
	Note  string  `json:"note,omitempty"`
}

// HasModel reports whether the model has a value.
func (r Row) HasModel() bool { return r.Use != Input && r.Use != Unknown }

// Deviation returns the model's value minus the paper's figure: in points for
// percentages, in per cent of the figure for others.
func (r Row) Deviation() float64 {
	if !r.HasModel() {
		return 0
	}
	if r.Unit == "%" {
		return r.Model - r.Paper
	}
	return (r.Model/r.Paper - 1) * 100
}

// MarshalJSON adds the deviation, and leaves it and the model's value out where there is none.
func (r Row) MarshalJSON() ([]byte, error) {
	type row Row // without this method
	out := struct {
		row
		Model     *float64 `json:"model,omitempty"`
		Deviation *float64 `json:"deviation,omitempty"`
	}{row: row(r)}
	if r.HasModel() {
		deviation := r.Deviation()
		out.Model, out.Deviation = &r.Model, &deviation
	}
	return json.Marshal(out)
}

// comparison collects rows of one table after another.
type comparison struct {
	fit   Fit
	where string
	rows  []Row
}

func (b *comparison) add(use Use, what, unit string, paper, model float64, note string, args ...any) {
	if len(args) > 0 {
		note = fmt.Sprintf(note, args...)
	}
	b.rows = append(b.rows, Row{b.where, what, unit, paper, model, use, note})
}

func (b *comparison) unknown(what, unit string, paper float64, why string) {
	b.add(Unknown, what, unit, paper, math.NaN(), why)
}

func (b *comparison) input(what, unit string, paper float64, note string) {
	b.add(Input, what, unit, paper, math.NaN(), note)
}

// Compare compares the model with every figure of Tables 4 to 14, Figures 4 and 7,
// and sections 3.5 and 5.1.
func Compare() []Row {
	b := &comparison{fit: Fitted()}
	b.figure4()
	b.table4()
	b.equation1()
	b.table6()
	b.table7()
	b.table8()
	b.table9()
	b.table10()
	b.table11()
	b.table12()
	b.figure7()
	b.graphics()
	b.section51()
	for i := range b.rows {
		if !b.rows[i].HasModel() {
			b.rows[i].Model = 0 // JSON has no NaN
		}
	}
	return b.rows
}

func (b *comparison) figure4() {
	b.where = "Figure 4"
	b.add(FitUse, "ResNet-50 at 8 us", "%", 90, 100*boundBy(mean64, b.fit.kernel(b.fit.Model, RTT90)), "determines slope and fixed part of the software model")
	b.add(FitUse, "ResNet-50 at 19 us", "%", 80, 100*boundBy(mean64, b.fit.kernel(b.fit.Model, RTT80)), "determines slope and fixed part of the software model")
	b.input("in-flight tags, MRRS 128", "", 140, "section 3.4.3")
}

func (b *comparison) table4() {
	b.where = "Table 4"
	b.add(Checked, "software model at 4.9 us", "%", 92.56, 100*boundBy(mean64, b.fit.kernel(b.fit.Model, RTTShort)), "constants from Figure 4")
	b.add(Checked, "software model at 6.8 us", "%", 91.40, 100*boundBy(mean64, b.fit.kernel(b.fit.Model, RTTLong)), "constants from Figure 4")
	for _, r := range []struct {
		what            string
		measured, own   float64
		real, synthetic float64
	}{
		{"hardware at 4.9 us", 91.50, 92.56, b.fit.kernel(b.fit.Real, RTTShort), b.fit.kernel(b.fit.Synthetic, RTTShort)},
		{"hardware at 6.8 us", 89.56, 91.40, b.fit.kernel(b.fit.Real, RTTLong), b.fit.kernel(b.fit.Synthetic, RTTLong)},
	} {
		b.add(Checked, r.what, "%", r.measured, 100*boundBy(mean64, r.real),
			"slope from Figure 4, fixed part from Table 9 ImageNet batch 32 and 128; the paper's own model deviates by %+.2f; with the fixed part of the synthetic rows %.2f", r.own-r.measured, 100*boundBy(mean64, r.synthetic))
	}
}

func (b *comparison) equation1() {
	b.where = "section 3.5.1"
	long, short := perf.V100.ReadThroughput(RTTLong).GB(), perf.V100.ReadThroughput(RTTShort).GB()
	b.add(Checked, "Equation 1 at 6.8 us", "GB/s", 2.64, long, "140 tags x 128 bytes")
	b.add(Checked, "Equation 1 at 4.9 us", "GB/s", 3.66, short, "140 tags x 128 bytes")
	b.add(Checked, "bandwidthTest at 6.8 us", "GB/s", 2.7, long, "Equation 1")
	b.add(Checked, "bandwidthTest at 4.9 us", "GB/s", 3.9, short, "Equation 1")
}

func (b *comparison) table6() {
	b.where = "Table 6"
	const native, network, conversion = 1.2, 1.9, 3.7
	sum := native + network + conversion
	b.input("original latency", "us", native, "the native round trip")
	b.input("network transmission", "us", network, "")
	b.input("packet conversion", "us", conversion, "")
	b.add(Derived, "round trip", "us", 6.8, sum, "sum of the parts")
	b.add(Derived, "share of original latency", "%", 17.7, 100*native/sum, "")
	b.add(Derived, "share of network transmission", "%", 27.9, 100*network/sum, "")
	b.add(Derived, "share of packet conversion", "%", 54.4, 100*conversion/sum, "")
}

// path returns the paper's system at 6.8 us.
func path() perf.Path {
	return perf.Path{Link: perf.Gen3x16, Requester: perf.V100, NativeRTT: NativeRTT, RTT: RTTLong}
}

func (b *comparison) table7() {
	b.where = "Table 7"
	p := path()
	const note = "link: Gen 3 x16, MPS 128 assumed (not given)"
	b.add(Checked, "host to GPU, DxPU", "GB/s", 2.7, p.Throughput(perf.HtoDByRead).GB(), "Equation 1")
	b.add(Checked, "host to GPU, native", "GB/s", 11.2, p.NativeThroughput(perf.HtoDByRead).GB(), "lower of Equation 1 and the link; "+note)
	b.add(Checked, "host to GPU, proportion", "%", 24.1, 100*float64(p.Throughput(perf.HtoDByRead))/float64(p.NativeThroughput(perf.HtoDByRead)), note)
	b.add(Checked, "GPU to host, DxPU", "GB/s", 11.6, p.Throughput(perf.DtoHByWrite).GB(), "posted: bound by the link; "+note)
	b.add(Checked, "GPU to host, native", "GB/s", 12.5, p.NativeThroughput(perf.DtoHByWrite).GB(), note)
	b.add(Checked, "GPU to host, proportion", "%", 92.8, 100, "posted writes do not depend on the round trip; the cost of the proxies themselves is not modelled")
}

func (b *comparison) table8() {
	b.where = "Table 8"
	const why = "durations of the kernels are not given"
	for _, r := range []struct {
		what string
		v    float64
	}{
		{"GEMM FP16", 97.2},
		{"GEMM FP32", 99.5},
		{"GEMM FP64", 99.1},
		{"FFT FP16", 96.3},
		{"FFT FP32", 97.5},
		{"FFT FP64", 98.3},
		{"stream copy", 98.8},
		{"stream scale", 99.1},
		{"stream add", 99.3},
		{"stream triad", 99.3},
		{"stream read", 97.3},
		{"stream write", 97.5},
	} {
		b.unknown(r.what, "%", r.v, why)
	}
}
