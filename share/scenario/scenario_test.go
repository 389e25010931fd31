package scenario

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/dxpu-project/dxpu/internal/model/workload"
	"github.com/dxpu-project/dxpu/share"
)

// TestRows runs the built-in scenarios. testdata/rows.txt has their figures:
// go test ./share/scenario -run TestRows -rewrite writes them again.
func TestRows(t *testing.T) {
	specs, err := Rows()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*Spec{}
	for _, s := range specs {
		byName[s.Name] = s
	}
	seen := map[string]bool{}
	datadriven.RunTest(t, "testdata/rows.txt", func(t *testing.T, d *datadriven.TestData) string {
		s := byName[d.Cmd]
		if s == nil {
			d.Fatalf(t, "no scenario %q", d.Cmd)
		}
		seen[d.Cmd] = true
		rows, err := s.Table(t.Context())
		if err != nil {
			return err.Error()
		}
		var out strings.Builder
		for _, r := range rows {
			fmt.Fprintf(&out, "%s: %s (paper: %s)\n", r.Figure, r.Text, r.Paper)
		}
		return out.String()
	})
	for name := range byName {
		if !seen[name] {
			t.Errorf("scenario %s is not in testdata/rows.txt", name)
		}
	}
}

// Each policy has a scenario of its own or takes part in one.
func TestEachPolicyHasARow(t *testing.T) {
	specs, err := Rows()
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, s := range specs {
		for _, r := range s.Runs {
			used[r.Policy] = true
		}
		for _, f := range s.Figures {
			if f.Why == "" || f.Paper == "" {
				t.Errorf("%s: figure %q lacks the paper's figure or the reason", s.Name, f.Name)
			}
		}
	}
	for _, p := range share.Policies() {
		if !used[p.Name] {
			t.Errorf("no scenario runs %s", p.Name)
		}
	}
}

func short(t *testing.T) []*Spec {
	t.Helper()
	mixes, err := Mixes()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mixes {
		m.Duration, m.Warmup = time.Second, 200*time.Millisecond
	}
	return mixes
}

// The same input gives the same output, to the last digit, and no policy of the
// comparison meets an event that does not fit.
func TestCompareIsDeterministic(t *testing.T) {
	a, err := Compare(t.Context(), short(t), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Compare(t.Context(), short(t), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range a {
		if a[i] != b[i] {
			t.Errorf("two runs differ: %+v and %+v", a[i], b[i])
		}
	}
	if want := len(share.Policies()) * 4; len(a) != want {
		t.Errorf("%d results, want %d", len(a), want)
	}
}

func TestHonestClientsCauseNoViolations(t *testing.T) {
	for _, m := range short(t) {
		for _, p := range share.Policies() {
			w, err := newWorld(m, Run{Name: p.Name, Policy: p.Name})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.simulate(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := w.policy.Violations(); n != 0 {
				t.Errorf("%s on %s: %d violations", p.Name, m.Name, n)
			}
		}
	}
}

// A recorded run takes part in a mix: its kernels keep their durations and gaps.
func TestRecordedRun(t *testing.T) {
	w := &workload.Workload{Names: []string{"", "sgemm", "elementwise_kernel"}, Streams: []workload.Stream{{}, {ID: 1}}}
	for i := range 40 {
		w.Ops = append(w.Ops, workload.Op{Start: time.Duration(i) * 100 * us, Dur: 60 * us, Name: uint32(1 + i%2), Kind: workload.Kernel})
	}
	w.Ops = append(w.Ops, workload.Op{Dur: 5 * us, Stream: 1}, workload.Op{Dur: 7 * us, Kind: workload.CopyHtoD})
	p, err := recorded(w, "trace:x", share.A100)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.steps) != 40 || p.steps[0].bound != share.BoundCompute || p.steps[1].bound != share.BoundMemory {
		t.Fatalf("%d steps; want the 40 kernels of the first stream", len(p.steps))
	}
	if d := p.remaining(0, share.A100); d != 40*60*us {
		t.Errorf("the kernels take %v, want 2.4 ms", d)
	}
	if p.steps[5].host != 40*us {
		t.Errorf("host time %v before a kernel, want the gap of 40 µs", p.steps[5].host)
	}
	if _, err := recorded(&workload.Workload{}, "empty", share.A100); err == nil {
		t.Error("a trace without kernels is accepted")
	}
	r, err := Compare(t.Context(), short(t)[:1], []string{"streams"}, w)
	if err != nil || r[0].Offline == 0 {
		t.Errorf("comparison with a trace: %+v, %v", r, err)
	}
}

func TestParseRefuses(t *testing.T) {
	const good = "name: a\nduration: 1s\nclients: [{name: c, program: steady-kernels}]\nruns: [{name: r, policy: mps}]\n"
	if _, err := Parse([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for want, text := range map[string]string{
		`unknown key "other"`:   good + "other: 1\n",
		"want a duration":       strings.Replace(good, "1s", "11m", 1),
		"no policy":             strings.Replace(good, "mps", "mpz", 1),
		"want 0 to 100 percent": strings.Replace(good, "steady-kernels", "steady-kernels, limit: 101", 1),
		"is below request":      strings.Replace(good, "steady-kernels", "steady-kernels, request: 50, limit: 10", 1),
		"want 0, or 0.001":      strings.Replace(good, "steady-kernels", "steady-kernels, rate: 1e-12", 1),
		"after the client":      strings.Replace(good, "steady-kernels", "steady-kernels, from: 500ms, until: 1ms", 1),
		"from or think":         strings.Replace(good, "steady-kernels", "steady-kernels, think: 2000000h", 1),
		"sample":                strings.Replace(good, "policy: mps", "policy: tgs, sample: 1ns", 1),
		"run \"r\": there are":  strings.Replace(good, "mps}", "mps}, {name: r, policy: tgs}", 1),
		"jobs per second":       strings.Replace(good, "steady-kernels", "steady-kernels, rate: .nan", 1),
		"lower-case":            strings.Replace(good, "name: a", "name: A", 1),
		"no client":             strings.Replace(good, "policy: mps", "policy: mps, clients: [d]", 1),
		"two of that name":      strings.Replace(good, "clients: [", "clients: [{name: c}, ", 1),
		"want a100":             good + "gpu: h1\n",
		"at most":               strings.Repeat("#", MaxText+1),
		"arrival":               strings.Replace(good, "steady-kernels", "steady-kernels, arrival: soon", 1),
		"out of range":          strings.Replace(good, "steady-kernels", "steady-kernels, from: -1s", 1),
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want an error with %q", text, err, want)
		}
	}
	s, err := Parse([]byte(strings.Replace(good, "steady-kernels", "none", 1)))
	if err == nil {
		_, err = s.Measure(t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), "no program") {
		t.Errorf("an unknown program: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	list, err := rowFiles.ReadDir("rows")
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range list {
		text, err := rowFiles.ReadFile("rows/" + e.Name())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse(text)
		if (s == nil) == (err == nil) {
			t.Fatalf("%v and %v", s, err)
		}
		if err != nil || s.Experiment != "" {
			return
		}
		s.Duration, s.Warmup = min(s.Duration, time.Millisecond), 0
		_, _ = s.Measure(t.Context())
	})
}

// The usage of a client that leaves counts until then.
func TestUsageOfAClientThatLeaves(t *testing.T) {
	s, err := Parse([]byte("name: a\nduration: 1s\nwarmup: 200ms\nclients: [{name: c, program: steady-kernels, until: 600ms}]\nruns: [{name: r, policy: mps}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := s.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := v["r.c.time"]; got < 0.4 || got > 0.5 {
		t.Errorf("time %v, want that of 400 of 800 ms", got)
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Compare(ctx, short(t), nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// A result says why it is far from what the policy's paper shows.
func TestNotes(t *testing.T) {
	mixes, err := Mixes()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mixes {
		m.Duration, m.Warmup = 10*time.Millisecond, 0
	}
	results, err := Compare(t.Context(), mixes, []string{"tgs", "mps"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if random := r.Mix != "two-trainings"; (r.Note != "") != (random && r.Policy == "tgs") {
			t.Errorf("note of %s with %s: %q", r.Mix, r.Policy, r.Note)
		}
	}
	if _, err := Parse([]byte("name: a\nduration: 1s\nclients: [{name: a, program: steady-kernels}]\nnotes: {frobs: none}")); err == nil {
		t.Error("a note on a policy that is not there")
	}
}
