package paper

import (
	"fmt"

	"github.com/dxpu-project/dxpu/internal/model/perf"
)

// table9 is ResNet-50 on one GPU at 6.8 us.
func (b *comparison) table9() {
	b.where = "Table 9"
	b.input("mean kernel, batch 32", "us", mean32, "training, synthetic; section 4.3.2")
	b.input("mean kernel, batch 64", "us", mean64, "")
	b.input("mean kernel, batch 128", "us", mean128, "")
	b.input("mean kernel, batch 64, XLA on", "us", mean64XLA, "")
	b.input("kernels' share of GPU time", "%", 100*kernelShare, "")
	// "the average value increase by 48.2%, 55.5%, 55.1%" in inference.
	batches := [3]int{32, 64, 128}
	train := [3]float64{mean32, mean64, mean128}
	infer := [3]float64{mean32 * 1.482, mean64 * 1.555, mean128 * 1.551}
	for _, set := range []struct {
		name                                 string
		fixed                                float64
		trainOff, trainOn, inferOff, inferOn [3]float64
		xlaKnown                             bool
	}{
		{"synthetic", b.fit.Synthetic, [3]float64{85.2, 92.7, 95.5}, [3]float64{93.3, 97.5, 97.9}, [3]float64{95.4, 98.6, 99.5}, [3]float64{94.6, 98.1, 99.6}, true},
		{"ImageNet", b.fit.Real, [3]float64{83.8, 89.4, 94.3}, [3]float64{92.4, 96.8, 97.3}, [3]float64{94.1, 97.2, 97.7}, [3]float64{93.2, 97.1, 97.6}, false},
	} {
		cost := b.fit.kernel(set.fixed, RTTLong)
		kernels := ""
		if set.name == "ImageNet" {
			kernels = "kernel durations are those of the synthetic dataset"
		}
		for i, n := range batches {
			what := func(mode string) string { return fmt.Sprintf("%s %s, batch %d", set.name, mode, n) }
			use := FitUse
			if n == 64 {
				use = Checked
			}
			b.add(use, what("training, XLA off"), "%", set.trainOff[i], 100*boundBy(train[i], cost), kernels)
			if set.xlaKnown && n == 64 {
				b.add(Checked, what("training, XLA on"), "%", set.trainOn[i], 100*boundBy(mean64XLA, cost), "fusion also removes kernels; their number is not given")
			} else {
				b.unknown(what("training, XLA on"), "%", set.trainOn[i], "mean kernel with XLA is given for batch 64 synthetic only")
			}
			b.add(Checked, what("inference, XLA off"), "%", set.inferOff[i], 100*boundBy(infer[i], cost),
				"cost per kernel %.1f us as in training; this row would need %.1f us%s", cost, costFor(infer[i], set.inferOff[i]/100), and(kernels))
			b.unknown(what("inference, XLA on"), "%", set.inferOn[i], "kernel statistics with XLA in inference are not given")
		}
	}
	const why = "directions, sizes and number of the copies of parameters are not given"
	for _, r := range []struct {
		what string
		v    float64
	}{
		{"synthetic training, XLA off", 90.9},
		{"synthetic training, XLA on", 88.1},
		{"synthetic inference, XLA off", 83.4},
		{"synthetic inference, XLA on", 74.0},
		{"ImageNet training, XLA off", 90.5},
		{"ImageNet training, XLA on", 88.0},
		{"ImageNet inference, XLA off", 84.1},
		{"ImageNet inference, XLA on", 73.5},
	} {
		b.unknown(r.what+", batch 128, parameters on the CPU", "%", r.v, why)
	}
}

// and joins a further note.
func and(note string) string {
	if note == "" {
		return ""
	}
	return "; " + note
}

func (b *comparison) table10() {
	b.where = "Table 10"
	for _, r := range []struct {
		what string
		v    float64
	}{
		{"synthetic training, GPU", 0.2},
		{"synthetic training, CPU", 7.5},
		{"synthetic inference, GPU", 0.2},
		{"synthetic inference, CPU", 15.6},
		{"ImageNet training, GPU", 2.8},
		{"ImageNet training, CPU", 9.9},
		{"ImageNet inference, GPU", 9.0},
		{"ImageNet inference, CPU", 22.3},
	} {
		b.input("share of memory operations, "+r.what, "%", r.v, "measured on native servers: a property of the workload")
	}
}

// table11 is SSD320 and NCF. SSD320's kernels are so short that the host, not the
// GPU, limits the native run: with an interval h between launches, the time per
// kernel is max(h, d) natively and max(h, d + c) on DxPU. The paper does not give h;
// it is fitted on one row.
func (b *comparison) table11() {
	b.where = "Table 11"
	cost := b.fit.kernel(b.fit.Real, RTTLong)
	ssd := []struct {
		batch       int
		mean, paper float64
	}{{8, 10.7, 81.53}, {16, 8.2, 84.62}, {32, 7.9, 84.47}, {64, 8.1, 83.64}}
	const fitRow = 2
	h := ssd[fitRow].paper / 100 * (interval(ssd[fitRow].mean) + cost)
	for i, r := range ssd {
		b.input(fmt.Sprintf("SSD320 mean kernel, batch %d", r.batch), "us", r.mean, "")
		loaded := interval(r.mean) + cost
		use := Checked
		if i == fitRow {
			use = FitUse
		}
		b.add(use, fmt.Sprintf("SSD320, batch %d", r.batch), "%", r.paper, 100*max(h, interval(r.mean))/max(h, loaded),
			"cost per kernel %.1f us as in Table 4; launch interval %.1f us fitted on batch 32; with a GPU that is never idle %.1f %%; this row alone would need an interval of %.1f us",
			cost, h, 100*boundBy(r.mean, cost), r.paper/100*loaded)
	}
	for _, r := range []struct {
		batch int
		paper float64
	}{{16384, 96.78}, {65536, 98.04}, {262144, 97.55}, {1048576, 98.25}} {
		p := r.paper / 100
		b.unknown(fmt.Sprintf("NCF, batch %d", r.batch), "%", r.paper,
			fmt.Sprintf("no kernel durations are given; the same cost of %.1f us per kernel would need %.0f us of native time per kernel", cost, cost*p/(1-p)))
	}
}

// table12 is several GPUs behind one proxy.
func (b *comparison) table12() {
	b.where = "Table 12"
	gpus := [4]int{1, 2, 4, 8}
	rows := []struct {
		batch                   int
		toGPU, toHost, relative [4]float64
	}{
		{64, [4]float64{1.5, 2.6, 4.9, 8.4}, [4]float64{0.8, 1.3, 2.3, 3.6}, [4]float64{92.7, 90.3, 87.5, 82.4}},
		{128, [4]float64{1.4, 2.6, 5.0, 8.3}, [4]float64{0.7, 1.3, 2.3, 3.6}, [4]float64{96.5, 94.7, 92.4, 90.7}},
	}
	fit := rows[0]
	// What this workload reaches. To the host it is less than the proxy carries (Table
	// 7): GPUs that get less data also send less.
	proxy := perf.Proxy{HostToGPU: perf.GBps(fit.toGPU[3]), GPUToHost: perf.GBps(fit.toHost[3])}
	toGPU, toHost := perf.GBps(fit.toGPU[1]/2), perf.GBps(fit.toHost[1]/2)
	means := map[int]float64{64: mean64, 128: mean128}
	for _, r := range rows {
		for i, n := range gpus {
			use := Checked
			note := "rate per GPU from batch 64 with 2 GPUs, most from batch 64 with 8"
			if r.batch == 64 && (n == 2 || n == 8) {
				use = FitUse
			}
			b.add(use, fmt.Sprintf("host to GPUs, batch %d, %d GPU", r.batch, n), "GB/s", r.toGPU[i], perf.Share(proxy.HostToGPU, 1, n, toGPU).GB(), note)
			b.add(use, fmt.Sprintf("GPUs to host, batch %d, %d GPU", r.batch, n), "GB/s", r.toHost[i], perf.Share(proxy.GPUToHost, 1, n, toHost).GB(), note)
			if n == 1 {
				b.add(Checked, fmt.Sprintf("performance, batch %d, 1 GPU", r.batch), "%", r.relative[i], 100*boundBy(means[r.batch], b.fit.kernel(b.fit.Synthetic, RTTLong)), "cost per kernel as in Table 9, synthetic")
			} else {
				b.unknown(fmt.Sprintf("performance, batch %d, %d GPU", r.batch, n), "%", r.relative[i], "the step time and what the GPUs exchange per step are not given")
			}
		}
	}
	b.where = "section 4.3.2"
	for i, n := range []int{1, 4, 8} {
		b.unknown(fmt.Sprintf("BERT, %d GPU", n), "%", []float64{94.6, 93.8, 93.4}[i], "no kernel durations are given")
	}
}

func (b *comparison) figure7() {
	b.where = "Figure 7"
	b.input("bandwidth across two proxies against one bridge", "%", 100*perf.AcrossProxies, "the factor of the model; the text does not give the rates")
}

// graphics are Tables 13 and 14, on an RTX 6000.
func (b *comparison) graphics() {
	b.where = "Table 13"
	b.unknown("valley", "%", 97.4, "durations of the GPU's work are not given")
	b.unknown("heaven", "%", 88.7, "durations of the GPU's work are not given")
	b.where = "Table 14"
	cost := b.fit.kernel(b.fit.Synthetic, RTTLong)
	for _, r := range []struct {
		what        string
		mean, paper float64
	}{{"1920x1080", 65.6, 87.9}, {"3840x2160", 122.8, 91.0}, {"7680x4320", 221.6, 93.0}} {
		b.input("ideas "+r.what+", mean GPU workload", "us", r.mean, "")
		b.add(Checked, "ideas "+r.what, "%", r.paper, 100*r.mean/(r.mean+cost), "cost of a kernel as in Table 9, synthetic; longer frames have more than the cost of one kernel")
	}
}

func (b *comparison) section51() {
	b.where = "section 5.1"
	b.add(Bound, "host to GPU by CPU stores", "GB/s", 9.44, path().Throughput(perf.HtoDByWrite).GB(), "rate of the link; the store rate of the CPU is not given")
}
