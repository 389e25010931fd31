//go:build linux

package hook

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/share"
)

// mix is one program of a colocation: rounds of launches of a kernel, each with some time of
// the processor, and a pause after each round. The times are in microseconds.
type mix struct {
	kernel               string
	launches, cpu, pause int
}

// The service is bound by the processor, like an inference of one picture in PyTorch: 160 short
// launches for each request. The job is bound by the GPU.
var (
	service = mix{"k10", 160, 40, 5000}
	job     = mix{"k20", 500, 0, 0}
)

// ran is what a program of a colocation measured, in nanoseconds.
type ran struct {
	rounds                                int
	median, p99, launchMean, launchSlower float64
}

// colocation is a fake GPU, with an agent if the programs have the library.
type colocation struct {
	*sharing
	served *served
	made   int // shares
	part   int // of the compute for each of several programs, in percent
}

// colocate returns a colocation with a policy; "bare" has no agent.
func colocate(b *testing.B, policy string) *colocation {
	b.Helper()
	x := &colocation{sharing: newSharing(b, 0), part: 50}
	if policy == "mig" {
		x.part = 42 // two instances of three slices of seven
	}
	x.program = "colocated"
	if x.bare = policy == "bare"; !x.bare {
		x.served = serveShares(b, policy)
	}
	return x
}

// ready starts a program, which waits for its start.
func (x *colocation) ready(b *testing.B, m mix, ms int) *sharer {
	b.Helper()
	p := x.start(b, m.kernel, fmt.Sprint(m.launches), fmt.Sprint(m.cpu), fmt.Sprint(m.pause), fmt.Sprint(ms))
	if !p.out.Scan() || p.out.Text() != "ready" {
		b.Fatalf("the program says %q\n%s", p.out.Text(), p.errOut.String())
	}
	return p
}

func (p *sharer) measured(b *testing.B) (r ran) {
	b.Helper()
	if !p.out.Scan() {
		b.Fatalf("the program ended\n%s", p.errOut.String())
	}
	if _, err := fmt.Sscan(p.out.Text(), &r.rounds, &r.median, &r.p99, &r.launchMean, &r.launchSlower); err != nil {
		b.Fatalf("%q: %v", p.out.Text(), err)
	}
	p.end()
	return r
}

// load returns the load of the machine in the last minute.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	load, _, _ := strings.Cut(string(text), " ")
	return load
}

// BenchmarkColocate runs a service and a job side by side on a GPU that runs one kernel at a
// time, without an agent and with the agent of this project and each policy. It reports the
// median and p99 of a request and the rate of the job beside those of each alone, measured
// right before because the machine sets the times, and the mean time of a call that launches.
// DXPU_COLOCATE_MS is the length of each measurement.
//
//	go test ./hook -run xxx -bench Colocate -benchtime 1x
func BenchmarkColocate(b *testing.B) {
	ms := 2000
	if text := os.Getenv("DXPU_COLOCATE_MS"); text != "" {
		if _, err := fmt.Sscan(text, &ms); err != nil {
			b.Fatal(err)
		}
	}
	names := []string{"bare"}
	for _, p := range share.Policies() {
		names = append(names, p.Name)
	}
	for _, name := range names {
		b.Run(name, func(b *testing.B) {
			x := colocate(b, name)
			for b.Loop() {
				alone, job0 := x.together(b, ms, service)[0], x.together(b, ms, job)[0]
				got := x.together(b, ms, service, job)
				b.ReportMetric(got[0].median/alone.median, "request-x")
				b.ReportMetric(got[0].p99/alone.p99, "p99-x")
				b.ReportMetric(alone.launchMean/1e3, "alone-us/launch")
				b.ReportMetric(got[0].launchMean/1e3, "us/launch")
				b.ReportMetric(float64(got[1].rounds)/float64(job0.rounds), "job-x")
			}
			b.ReportMetric(0, "ns/op")
			b.Logf("load %s", load())
		})
	}
}

// together runs programs at the same time, the first one online and the others offline, each in
// a share with half of the compute (3/7 with mig), or without a limit when it is alone.
func (x *colocation) together(b *testing.B, ms int, programs ...mix) []ran {
	b.Helper()
	var all []*sharer
	var ended []string
	for i, m := range programs {
		if !x.bare {
			x.made++
			part := agent.Part{ID: fmt.Sprintf("s%d", x.made), Memory: 1 << 20, Offline: i > 0}
			if len(programs) > 1 {
				part.Compute = new(int64(share.Percent(x.part)))
			}
			made, err := x.served.api.Create(b.Context(), part)
			if err != nil {
				b.Fatal(err)
			}
			x.env = []string{"DXPU_SHARE=" + made.Socket}
			ended = append(ended, part.ID)
		}
		all = append(all, x.ready(b, m, ms))
	}
	for _, p := range all {
		p.send("")
	}
	var out []ran
	for _, p := range all {
		out = append(out, p.measured(b))
	}
	for _, id := range ended { // mig has no room beside a share of the whole GPU
		if err := x.served.api.End(b.Context(), id, 0); err != nil {
			b.Fatal(err)
		}
	}
	return out
}
