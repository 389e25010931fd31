package nvidia

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/mig"
	"github.com/dxpu-project/dxpu/internal/sharing/nvidiatest"
)

// faultySMI is nvidia-smi in this process. One of its runs goes wrong.
type faultySMI struct {
	t    *testing.T
	smi  nvidiatest.SMI
	runs int
	at   int // run that goes wrong; -1: none
	kind string
	seen []nvidiatest.SMIProcess // processes of the last look
	log  []string
}

// kinds are the ways in which a run goes wrong: the part that it does before, and its answer.
var kinds = []string{
	"nothing done, fails", "all done, fails", "half done, fails", "nothing done, hangs", "all done, hangs", "half done, hangs",
	"nothing done, garbage", "all done, garbage", "nothing done, says nothing", "all done, cut", "killed", "a program begins",
}

func (f *faultySMI) gpu() *nvidiatest.SMIGPU { return &f.smi.GPUs[0] }

func (f *faultySMI) run(_ context.Context, c command) (string, error) {
	n := f.runs
	f.runs++
	line := strings.Join(c.args, " ")
	kind := ""
	if n == f.at {
		kind = f.kind
	}
	f.log = append(f.log, fmt.Sprintf("%s [%s]", line, kind))
	if kind == "a program begins" {
		f.begin()
	}
	f.check(c.args)
	text, code := "", 0
	if !strings.HasPrefix(kind, "nothing") && kind != "killed" {
		text, code = f.smi.Run(c.args)
	}
	if strings.HasPrefix(kind, "half") {
		f.halve(c.args)
	}
	if strings.Contains(line, "-q -x") && (kind == "" || kind == "a program begins") {
		f.seen = slices.Clone(f.gpu().Processes)
	}
	_, end, _ := strings.Cut(kind, ", ")
	switch {
	case kind == "killed":
		return "", &ExitError{c.String(), -1, ""}
	case end == "fails":
		return "Unknown Error\n", &ExitError{c.String(), 255, "Unknown Error\n"}
	case end == "hangs":
		return "", fmt.Errorf("%s: %w", c, ErrTimeout)
	case end == "garbage":
		return "\x00\xff segmentation | 0 1 2 3 4 5 |\n|   0  MIG x y z |\n", nil
	case end == "says nothing":
		return "", nil
	case end == "cut":
		text = text[:len(text)/2]
	}
	if code != 0 {
		return text, &ExitError{c.String(), code, text}
	}
	return text, nil
}

// begin lets a program use the GPU, or an instance of it.
func (f *faultySMI) begin() {
	p := nvidiatest.SMIProcess{PID: 99, Instance: -1}
	if g := f.gpu(); g.Enabled {
		if len(g.Instances) == 0 {
			return
		}
		i := g.Instances[f.runs%len(g.Instances)]
		if len(i.Compute) == 0 {
			return
		}
		p.Instance = i.ID
	}
	f.gpu().Processes = append(f.gpu().Processes, p)
}

// check fails if a command changes an instance, or the mode, under a program that was seen.
func (f *faultySMI) check(args []string) {
	line := strings.Join(args, " ")
	for _, p := range f.seen {
		if strings.Contains(line, "-mig ") || strings.Contains(line, fmt.Sprintf("-gi %d ", p.Instance)) || strings.HasSuffix(line, fmt.Sprintf("-gi %d", p.Instance)) {
			f.t.Errorf("%q while instance %d is in use\n%s", line, p.Instance, strings.Join(f.log, "\n"))
		}
	}
}

// halve undoes the second half of a command: a new instance has no compute instance.
func (f *faultySMI) halve(args []string) {
	list := f.gpu().Instances
	if n := len(list) - 1; slices.Contains(args, "-cgi") && n >= 0 {
		list[n].Compute = nil
	} else if slices.Contains(args, "-cci") && n >= 0 {
		list[n].Compute = list[n].Compute[:1]
	}
}

// state describes the partitions.
func (f *faultySMI) state() string {
	g := f.gpu()
	var out []string
	for _, i := range g.Instances {
		out = append(out, fmt.Sprintf("%d@%d/%d", i.Profile, i.Start, len(i.Compute)))
	}
	slices.Sort(out)
	return fmt.Sprint(g.Enabled, g.Pending, out)
}

// gpuStates are states from which a partition begins: MIG mode is off in the last one.
var gpuStates = [][]nvidiatest.SMIInstance{
	{},
	{{ID: 1, Profile: 9, Start: 4, Compute: []int{0}}, {ID: 2, Profile: 19, Start: 0, Compute: []int{0}}},
	{{ID: 3, Profile: 0, Start: 0, Compute: []int{0}}},
	{{ID: 1, Profile: 9, Start: 4, Compute: []int{0, 1, 2}, Parts: true}, {ID: 2, Profile: 14, Start: 0, Compute: []int{0}, Parts: true}},
	{{ID: 1, Profile: 19, Start: 4, Compute: []int{0}}, {ID: 2, Profile: 19, Start: 0}, {ID: 5, Profile: 14, Start: 2, Compute: []int{0}}},
	nil,
}

// TestPartitionFaults lets runs of nvidia-smi go wrong in each way. No instance changes under a
// program, an error tells the truth about what is left, and the next attempt gets there.
func TestPartitionFaults(t *testing.T) {
	wants := [][]string{nil, {"7g.40gb"}, {"3g.20gb", "1g.5gb"}, {"4g.20gb", "2g.10gb"}, {"1g.5gb", "1g.5gb", "3g.20gb", "2g.10gb"}, {"9g.90gb"}}
	rng := rand.New(rand.NewPCG(1, 7))
	for state, instances := range gpuStates {
		on := instances != nil
		for n := range len(wants) + 1 {
			var want []string
			off := n == len(wants)
			if !off {
				want = wants[n]
			}
			g := nvidiatest.SMIGPU{UUID: gpu, Enabled: on, Pending: on, Next: 7, Instances: instances}
			testFaults(t, rng, fmt.Sprintf("state %d", state), g, want, off)
			if g.NeedReset = on == off; g.NeedReset && !t.Failed() { // the mode changes
				testFaults(t, rng, fmt.Sprintf("state %d with resets", state), g, want, off)
			}
			if t.Failed() {
				return
			}
		}
	}
}

func testFaults(t *testing.T, rng *rand.Rand, name string, g nvidiatest.SMIGPU, want []string, off bool) {
	last, dir := 4, t.TempDir()
	for at := rng.IntN(5); at <= last; at += 2 + rng.IntN(12) { // also without a fault
		for _, kind := range kinds {
			last = max(last, testFault(t, dir, name, g, want, off, at, kind))
			if t.Failed() {
				return
			}
		}
	}
}

func testFault(t *testing.T, dir, name string, g nvidiatest.SMIGPU, want []string, off bool, at int, kind string) (runs int) {
	g.Instances = slices.Clone(g.Instances)
	for n := range g.Instances {
		g.Instances[n].Compute = slices.Clone(g.Instances[n].Compute)
	}
	f := &faultySMI{t: t, smi: nvidiatest.SMI{GPUs: []nvidiatest.SMIGPU{g}}, at: at, kind: kind}
	p := &Partition{Programs: Programs{runs: f.run}, UUID: gpu, Want: want, Off: off, Delay: time.Nanosecond, Dir: dir}
	before := f.state()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s, want %v off %v, run %d %s: %s\n%s", name, want, off, at, kind, fmt.Sprintf(format, args...), strings.Join(f.log, "\n"))
	}
	impossible := slices.Contains(want, "9g.90gb") // the way back is taken without a fault, too
	_, err := p.Apply(t.Context())
	after := f.state()
	switch {
	case err == nil:
		if len(f.gpu().Processes) == 0 && !f.reached(want, off) {
			fail("success, and %s", after)
		}
	case (len(f.gpu().Processes) > 0 || impossible) && strings.Contains(err.Error(), "the way back failed"):
	case errors.As(err, new(mig.ResetError)): // also if a program came right then
		if f.gpu().Enabled != g.Enabled || f.gpu().Pending == off {
			fail("%s, was %s, waits for a reset: %v", after, before, err)
		}
		f.gpu().Pending = g.Pending
		if failed := strings.Contains(err.Error(), "the way back failed"); f.state() != before && !failed || failed && at >= f.runs {
			fail("%s, was %s, and a reset is due: %v", after, before, err)
		}
		f.gpu().Pending = !off
	case before != after && !(f.reached(want, off) && strings.Contains(err.Error(), "done")):
		fail("%s, was %s: %v", after, before, err)
	}
	runs = f.runs
	f.at, f.gpu().Processes, f.seen = -1, nil, nil
	if err := f.again(t, p); err != nil && !impossible {
		fail("the next attempt, with %s: %v", after, err)
	} else if err == nil && !f.reached(want, off) {
		fail("the next attempt: %s", f.state())
	}
	return runs
}

// again tries again, and does what an error asks for.
func (f *faultySMI) again(t *testing.T, p *Partition) error {
	_, err := p.Apply(t.Context())
	for n := 0; n < 2 && errors.As(err, new(mig.ResetError)); n++ {
		if err := p.Programs.Reset(t.Context(), gpu); err != nil {
			return err
		}
		_, err = p.Apply(t.Context())
	}
	return err
}

func (f *faultySMI) reached(want []string, off bool) bool {
	if off {
		return f.state() == "false false []"
	}
	var have []int
	for _, i := range f.gpu().Instances {
		if len(i.Compute) == 0 {
			return false
		}
		have = append(have, i.Profile)
	}
	var ids []int
	for _, w := range want {
		ids = append(ids, map[string]int{"1g.5gb": 19, "2g.10gb": 14, "3g.20gb": 9, "4g.20gb": 5, "7g.40gb": 0}[w])
	}
	slices.Sort(have)
	slices.Sort(ids)
	return f.gpu().Enabled && slices.Equal(have, ids)
}
