package cluster

import (
	"math"
	"strings"
	"testing"
)

// Jobs of one GPU that arrive at random and are lost if none is free are Erlang's loss
// system: 100 erlangs need 117 GPUs to lose less than 1 %.
func TestSizeIsErlangs(t *testing.T) {
	r := run(t, `
experiment: size
size: {gpus: 100, accepted: 99}
servers: [{count: 1, cores: 8, memory-gib: 64, gpus: 1}]
requests: [{weight: 1, gpus: 1, cores: 8, memory-gib: 64}]
lives: 25
seeds: 2
policies: [best-fit]
pools: [{name: pool}]
`)
	for _, who := range []string{"best-fit", "pool"} {
		if n := cell(t, r, "size", who, "gpus"); math.Abs(n-117) > 5 {
			t.Errorf("%s needs %v GPUs, Erlang's formula says 117", who, n)
		}
		if n := cell(t, r, "size", who, "hosts"); math.Abs(n-117) > 5 {
			t.Errorf("%s needs %v hosts, one for each job", who, n)
		}
	}
}

// Servers that are too small for a job are none; the pool serves it, with hosts of its own
// number, and the cost follows from the prices.
func TestSizeOfPool(t *testing.T) {
	r := run(t, `
experiment: size
size: {gpus: 40, accepted: 90}
servers: [{count: 1, cores: 32, memory-gib: 64, gpus: 4}]
requests: [{weight: 1, gpus: 8, cores: 4, memory-gib: 8, profile: p}]
seeds: 2
policies: [best-fit]
pools: [{name: pool, box-size: 4}]
performance:
  rtt: 6.8us
  profiles: [{name: p, step-ms: 10, kernels: 100, mb-to-device: 25}]
  prices: {server-hour: 2, box-hour: 0.5, gpu-cost-hour: 1}
failures: {rates: {gpu: 0.05, box: 0.01}, availability: [99]}
`)
	if n := cell(t, r, "size", "best-fit", "gpus"); !math.IsNaN(n) {
		t.Errorf("servers of 4 GPUs are said to suffice for jobs of 8: %v GPUs", n)
	}
	v := func(column string) float64 { return cell(t, r, "size", "pool", column) }
	if gpus, boxes, hosts := v("gpus"), v("boxes"), v("hosts"); gpus != 4*boxes || gpus < 40 || hosts*8 > gpus/2 || hosts < 1 {
		t.Errorf("%v GPUs, %v boxes, %v hosts", gpus, boxes, hosts)
	}
	// Each GPU gets 25 MB in 10 ms and more, so four of them up to 10 GB/s: more than the 8.4 GB/s of a proxy.
	if v("proxies") != v("boxes") && v("proxies") != 2*v("boxes") {
		t.Errorf("%v proxies of %v boxes", v("proxies"), v("boxes"))
	}
	if want := 8760 * (2*v("hosts") + 0.5*v("boxes") + v("gpus") + v("spares")); math.Abs(v("cost_year")-want) > 1 || v("spares") < 1 {
		t.Errorf("costs %v a year, want %v with %v spares", v("cost_year"), want, v("spares"))
	}
	if !math.IsNaN(v("saved")) {
		t.Errorf("saved %v against servers that do not suffice", v("saved"))
	}
}

func TestSizeRefuses(t *testing.T) {
	const rest = "\nservers: [{count: 1, cores: 8, memory-gib: 8, gpus: 1}]\nrequests: [{weight: 1, gpus: 1, cores: 1}]\npolicies: [fgd]\n"
	for _, c := range [][2]string{
		{"experiment: size" + rest, "want size"},
		{"experiment: churn\nsize: {gpus: 5}" + rest, "want size"},
		{"experiment: size\nsize: {gpus: 1e9}" + rest, "size: gpus"},
		{"experiment: size\nsize: {gpus: .nan}" + rest, "size: gpus"},
		{"experiment: size\nsize: {gpus: 5, accepted: 100}" + rest, "accepted 100"},
		{"experiment: size\nsize: {gpus: 100000}\nlives: 1000" + rest, "jobs arrive"},
		{"experiment: size\nsize: {gpus: 5}\nfailures: {}" + rest, "failures: want"},
		{"experiment: size\nsize: {gpus: 5}\n" + strings.Replace(rest, "gpus: 1, c", "gpus: 0, c", 1), "asks for a GPU"},
	} {
		_, err := load(t, c[0])
		if err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s\nerror %v, want one with %q", c[0], err, c[1])
		}
	}
}
