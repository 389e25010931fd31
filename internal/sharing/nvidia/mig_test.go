package nvidia

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/mig"
	"github.com/dxpu-project/dxpu/internal/sharing/nvidiatest"
)

const gpu = "GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0"

// partition returns a fake GPU and what changes its partitions.
func partition(t *testing.T, g nvidiatest.SMIGPU, want ...string) (string, *Partition) {
	t.Helper()
	dir := nvidiatest.Install(t)
	g.UUID = gpu
	nvidiatest.EditSMI(t, dir, func(s *nvidiatest.SMI) { s.GPUs = []nvidiatest.SMIGPU{{UUID: "GPU-other", NoMIG: true}, g} })
	return dir, &Partition{Programs: Programs{SMI: filepath.Join(dir, "nvidia-smi")}, UUID: gpu, Want: want, Delay: time.Millisecond, Dir: t.TempDir()}
}

// enabled is a fake GPU in MIG mode with 3g.20gb at slice 4 and 1g.5gb at slice 0.
func enabled() nvidiatest.SMIGPU {
	return nvidiatest.SMIGPU{
		Enabled: true, Pending: true, Next: 2,
		Instances: []nvidiatest.SMIInstance{{ID: 1, Profile: 9, Start: 4, Compute: []int{0}}, {ID: 2, Profile: 19, Start: 0, Compute: []int{0}}},
	}
}

// layout describes the instances of the fake, in order of their places.
func layout(t *testing.T, dir string) string {
	t.Helper()
	s := nvidiatest.EditSMI(t, dir, func(*nvidiatest.SMI) {})
	list := s.GPUs[1].Instances
	slices.SortFunc(list, func(a, b nvidiatest.SMIInstance) int { return a.Start - b.Start })
	var out []string
	for _, i := range list {
		out = append(out, fmt.Sprintf("%d@%d", i.Profile, i.Start))
	}
	return strings.Join(out, " ")
}

// A reset works when no process uses the GPU, and an answer without success is an error.
func TestReset(t *testing.T) {
	dir, p := partition(t, nvidiatest.SMIGPU{Processes: []nvidiatest.SMIProcess{{PID: 7, Instance: -1}}})
	if err := p.Programs.Reset(t.Context(), gpu); err == nil || !strings.Contains(err.Error(), "being used") {
		t.Errorf("reset of a GPU in use: %v", err)
	}
	nvidiatest.EditSMI(t, dir, func(s *nvidiatest.SMI) {
		s.GPUs[1].Processes = nil
		s.Faults = []nvidiatest.SMIFault{{Command: "--gpu-reset", Count: 1, Text: "Nothing to do.\n"}}
	})
	if err := p.Programs.Reset(t.Context(), gpu); err == nil {
		t.Error("an answer without a reset is success")
	}
	if err := p.Programs.Reset(t.Context(), gpu); err != nil {
		t.Error(err)
	}
}

func TestPartition(t *testing.T) {
	for _, tt := range []struct {
		name   string
		gpu    nvidiatest.SMIGPU
		want   []string
		faults []nvidiatest.SMIFault
		err    string
		after  string
	}{
		{name: "from nothing", want: []string{"3g.20gb", "1g.5gb", "1g.5gb"}, after: "9@0 19@4 19@5"},
		{name: "none", gpu: enabled(), after: ""},
		{name: "move", gpu: enabled(), want: []string{"3g.20gb", "1g.5gb", "2g.10gb", "1g.5gb"}, after: "19@0 19@1 14@2 9@4"},
		{
			name: "in use for a moment", gpu: enabled(), after: "",
			faults: []nvidiatest.SMIFault{{Command: "mig -dci", Count: 3, Text: "Unable to destroy compute instance ID  0 from GPU  1 GPU instance ID  1: In use by another client\n", Code: 19}},
		},
		{
			name: "in use for long", gpu: enabled(), after: "19@0 9@4", err: "the former instances are in place",
			faults: []nvidiatest.SMIFault{{Command: "mig -dgi -gi 2", Count: 5, Text: "Unable to destroy GPU instance ID  2 from GPU  1: In use by another client\n", Code: 19}},
		},
		{
			name: "the second creation fails", gpu: enabled(), want: []string{"4g.20gb", "2g.10gb"}, after: "19@0 9@4", err: "Insufficient Resources",
			faults: []nvidiatest.SMIFault{{Command: "mig -cgi", Skip: 1, Count: 1, Text: "Failed to create GPU instances: Insufficient Resources\n", Code: 23}},
		},
		{
			name: "the way back fails too", gpu: enabled(), want: []string{"7g.40gb"}, after: "", err: "the way back failed too",
			faults: []nvidiatest.SMIFault{{Command: "mig -cgi", Count: -1, Text: "Failed to create GPU instances: Unknown Error\n", Code: 255}},
		},
		{
			name: "success is a lie", gpu: enabled(), want: []string{"7g.40gb"}, after: "", err: "steps remain",
			faults: []nvidiatest.SMIFault{{Command: "mig -cgi", Count: -1, Text: "Successfully created GPU instance ID  9 on GPU  1\n"}},
		},
		{name: "garbage", gpu: enabled(), after: "19@0 9@4", err: "unknown row", faults: []nvidiatest.SMIFault{{Command: "mig -lgi", Skip: 2, Count: -1, Text: "| 1 2 3 4 5 |\n"}}},
		{
			name: "a process comes", gpu: func() nvidiatest.SMIGPU {
				g := enabled()
				g.Processes = []nvidiatest.SMIProcess{{PID: 4559, Instance: 1}}
				return g
			}(), want: []string{"1g.5gb"}, after: "19@0 9@4", err: "instance 1 (3g.20gb) by processes 4559",
		},
		{name: "a reset is due", gpu: nvidiatest.SMIGPU{NeedReset: true}, want: []string{"7g.40gb"}, err: "nvidia-smi --gpu-reset -i " + gpu},
		{name: "no MIG", gpu: nvidiatest.SMIGPU{NoMIG: true}, err: "has no MIG"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir, p := partition(t, tt.gpu, tt.want...)
			nvidiatest.EditSMI(t, dir, func(s *nvidiatest.SMI) { s.Faults = tt.faults })
			g, err := p.Apply(t.Context())
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if got := layout(t, dir); got != tt.after {
				t.Errorf("instances %q, want %q", got, tt.after)
			}
			if err != nil {
				return
			}
			for _, i := range g.Instances {
				if len(i.Compute) != 1 || !strings.HasPrefix(i.Compute[0].UUID, "MIG-") {
					t.Errorf("instance %+v has no device", i)
				}
			}
		})
	}
}

// A plan changes nothing, and neither does a partition as wanted.
func TestPartitionUnchanged(t *testing.T) {
	dir, p := partition(t, enabled(), "1g.5gb", "3g.20gb")
	if _, plan, err := p.Plan(t.Context()); len(plan.Steps) > 0 || err != nil {
		t.Errorf("%+v, %v", plan, err)
	}
	if _, err := p.Apply(t.Context()); err != nil {
		t.Error(err)
	}
	p.Want = nil
	if _, plan, err := p.Plan(t.Context()); len(plan.Steps) != 2 || err != nil {
		t.Errorf("%+v, %v", plan, err)
	}
	if s := nvidiatest.EditSMI(t, dir, func(*nvidiatest.SMI) {}); len(s.Log) > 0 {
		t.Errorf("commands %q", s.Log)
	}
}

// A client that begins between the plan and a step keeps its instance: the steps
// before are undone.
func TestPartitionClientComes(t *testing.T) {
	dir, p := partition(t, enabled())
	p.Progress = func(s mig.Step, _ error) {
		if s.Instance == 1 {
			nvidiatest.EditSMI(t, dir, func(s *nvidiatest.SMI) { s.GPUs[1].Processes = []nvidiatest.SMIProcess{{PID: 9, Instance: 2}} })
		}
	}
	_, err := p.Apply(t.Context())
	if !errors.As(err, new(*mig.BusyError)) || !strings.Contains(err.Error(), "former instances") {
		t.Errorf("%v", err)
	}
	if got := layout(t, dir); got != "19@0 9@4" {
		t.Errorf("instances %q", got)
	}
}

func TestPartitionOff(t *testing.T) {
	dir, p := partition(t, enabled())
	p.Off = true
	g, err := p.Apply(t.Context())
	if err != nil || g.Enabled {
		t.Errorf("%+v, %v", g, err)
	}
	want := []string{"mig -dci -gi 1 -ci 0", "mig -dgi -gi 1", "mig -dci -gi 2 -ci 0", "mig -dgi -gi 2", "-mig 0"}
	if s := nvidiatest.EditSMI(t, dir, func(*nvidiatest.SMI) {}); !slices.Equal(s.Log, want) {
		t.Errorf("commands %q", s.Log)
	}
}

// MIG mode that ends with the next reset only: the instances come back until then, and the
// request stays.
func TestPartitionOffWithReset(t *testing.T) {
	g := enabled()
	g.NeedReset = true
	dir, p := partition(t, g)
	p.Off = true
	_, err := p.Apply(t.Context())
	if !errors.As(err, new(mig.ResetError)) || !strings.Contains(err.Error(), "the former instances are in place") {
		t.Errorf("%v", err)
	}
	if s := nvidiatest.EditSMI(t, dir, func(*nvidiatest.SMI) {}); layout(t, dir) != "19@0 9@4" || !s.GPUs[1].Enabled || s.GPUs[1].Pending {
		t.Errorf("%+v after commands %q", s.GPUs[1], s.Log)
	}
	if err := p.Programs.Reset(t.Context(), gpu); err != nil {
		t.Fatal(err)
	}
	if g, err := p.Apply(t.Context()); err != nil || g.Enabled {
		t.Errorf("after the reset: %+v, %v", g, err)
	}
}

// A user who may not see the instances reads that there are none: it is an error with a remedy.
func TestPartitionDenied(t *testing.T) {
	for _, list := range []string{"mig -lgi", "mig -lci"} {
		dir, p := partition(t, enabled())
		nvidiatest.EditSMI(t, dir, func(s *nvidiatest.SMI) {
			// -lgi is the beginning of -lgip and -lgipp, which all users may read.
			skip := map[string]int{"mig -lgi": 2}[list]
			text := "Failed to display instances: Insufficient Permissions\nNo GPU instances found: Insufficient Permissions\n"
			s.Faults = []nvidiatest.SMIFault{{Command: list, Skip: skip, Count: -1, Text: text, Code: 4}}
			s.GPUs[1].Instances[0].Compute, s.GPUs[1].Instances[1].Compute = nil, nil // no device shows that there are instances
		})
		if g, err := p.Programs.MIG(t.Context(), gpu); err == nil || !strings.Contains(err.Error(), "Insufficient Permissions") || !strings.Contains(err.Error(), "as root") {
			t.Errorf("%s: %+v, %v", list, g, err)
		}
	}
}

func TestDevices(t *testing.T) {
	dir, p := partition(t, enabled())
	got, err := p.Programs.Devices(t.Context())
	if err != nil || len(got) != 2 || got[1] != (Device{gpu, "00000000:02:00.0", "NVIDIA A100-SXM4-40GB", 40 << 30}) {
		t.Errorf("%+v, %v", got, err)
	}
	nvidiatest.EditSMI(t, dir, func(s *nvidiatest.SMI) {
		s.Faults = []nvidiatest.SMIFault{{Command: "--query-gpu", Count: 1, Text: "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", Code: 9}}
	})
	if _, err := p.Programs.Devices(t.Context()); err == nil || !strings.Contains(err.Error(), "exit status 9") {
		t.Errorf("%v", err)
	}
}

func FuzzDevices(f *testing.F) {
	f.Add(gpu + ", 00000000:36:00.0, NVIDIA A100-SXM4-40GB, 40960\n")
	f.Add("")
	f.Add("--help, 0, x, 1\n")
	f.Add(gpu + ", 0, x, 99999999999\n")
	f.Fuzz(func(t *testing.T, text string) {
		devices, err := parseDevices(text)
		if err != nil && devices != nil {
			t.Errorf("%v beside %v", devices, err)
		}
		for _, d := range devices {
			if !strings.HasPrefix(d.UUID, "GPU-") || strings.ContainsAny(d.UUID, "/, \n") || d.Memory < 0 {
				t.Errorf("%+v", d)
			}
		}
	})
}

// The compute instances of an instance that moves, or comes back after a failed step, have the
// places that they had, in their order: drivers that take no places give them out so.
func TestPartitionKeepsPlaces(t *testing.T) {
	former := []nvidiatest.SMIPlace{{Profile: 1, Start: 0}, {Profile: 0, Start: 2}} // the large one first
	for _, old := range []bool{false, true} {
		g := nvidiatest.SMIGPU{Enabled: true, Pending: true, Next: 2, NoPlaces: old, Instances: []nvidiatest.SMIInstance{
			{ID: 1, Profile: 9, Start: 0, Compute: []int{0, 1}, Parts: true, Places: former},
		}}
		dir, p := partition(t, g, "3g.20gb", "4g.20gb") // the former has to move, because the latter begins at 0 only
		if _, err := p.Apply(t.Context()); err != nil {
			t.Fatalf("old %v: %v", old, err)
		}
		s := nvidiatest.EditSMI(t, dir, func(*nvidiatest.SMI) {})
		if i := s.GPUs[1].Instances; layout(t, dir) != "5@0 9@4" || !slices.ContainsFunc(i, func(i nvidiatest.SMIInstance) bool { return i.Start == 4 && slices.Equal(i.Places, former) }) {
			t.Errorf("old %v: instances %+v after %q", old, i, s.Log)
		}
	}
}

// A gap between compute instances comes back, too, where the driver takes places.
func TestPartitionRestoresGaps(t *testing.T) {
	former := []nvidiatest.SMIPlace{{Profile: 0, Start: 2}}
	dir, p := partition(t, nvidiatest.SMIGPU{Enabled: true, Pending: true, Next: 2, Instances: []nvidiatest.SMIInstance{
		{ID: 1, Profile: 9, Start: 0, Compute: []int{0}, Parts: true, Places: former},
	}}, "7g.40gb")
	nvidiatest.EditSMI(t, dir, func(s *nvidiatest.SMI) {
		s.Faults = []nvidiatest.SMIFault{{Command: "mig -cgi", Count: 1, Text: "Failed to create GPU instances: Unknown Error\n", Code: 255}}
	})
	if _, err := p.Apply(t.Context()); err == nil || !strings.Contains(err.Error(), "the former instances are in place") {
		t.Errorf("error %v", err)
	}
	if s := nvidiatest.EditSMI(t, dir, func(*nvidiatest.SMI) {}); len(s.GPUs[1].Instances) != 1 || !slices.Equal(s.GPUs[1].Instances[0].Places, former) {
		t.Errorf("instances %+v after %q", s.GPUs[1].Instances, s.Log)
	}
}

// A GPU whose processes nvidia-smi does not list counts as one in use: nothing of it goes.
func TestPartitionWithoutProcesses(t *testing.T) {
	g := enabled()
	g.Untold = true
	for _, want := range [][]string{nil, {"7g.40gb"}, {"4g.20gb", "2g.10gb"}} {
		dir, p := partition(t, g, want...)
		_, err := p.Apply(t.Context())
		if !errors.As(err, new(*mig.BusyError)) || !strings.Contains(err.Error(), "does not list its processes; run this outside of a container") {
			t.Errorf("%q: error %v", want, err)
		}
		if got := layout(t, dir); got != "19@0 9@4" {
			t.Errorf("%q: instances %q", want, got)
		}
	}
	dir, p := partition(t, g, "3g.20gb", "1g.5gb", "2g.10gb") // this one needs no room of others
	if _, err := p.Apply(t.Context()); err != nil || layout(t, dir) != "19@0 14@2 9@4" {
		t.Errorf("%q, %v", layout(t, dir), err)
	}
	for _, g := range []nvidiatest.SMIGPU{{Untold: true}, {Untold: true, Enabled: true, Pending: true}} {
		dir, p = partition(t, g)
		p.Off = g.Enabled
		if !p.Off {
			p.Want = []string{"7g.40gb"}
		}
		if _, err := p.Apply(t.Context()); !errors.As(err, new(*mig.BusyError)) {
			t.Errorf("the mode of %+v: %v, commands %q", g, err, nvidiatest.EditSMI(t, dir, func(*nvidiatest.SMI) {}).Log)
		}
	}
}

// The way back takes away what the change has made, also where nothing tells of processes.
func TestPartitionUndoesWithoutProcesses(t *testing.T) {
	dir, p := partition(t, nvidiatest.SMIGPU{Enabled: true, Pending: true, Next: 2, Untold: true}, "3g.20gb", "2g.10gb")
	nvidiatest.EditSMI(t, dir, func(s *nvidiatest.SMI) {
		s.Faults = []nvidiatest.SMIFault{{Command: "mig -cgi 14", Count: 1, Text: "Failed to create GPU instances: Unknown Error\n", Code: 255}}
	})
	if _, err := p.Apply(t.Context()); err == nil || strings.Contains(err.Error(), "the way back failed") || layout(t, dir) != "" {
		t.Errorf("instances %q after %v", layout(t, dir), err)
	}
}

// Two changes of one GPU at once: the second is refused, and its steps do not mix with those of the
// first one.
func TestPartitionAlone(t *testing.T) {
	dir, p := partition(t, enabled(), "7g.40gb")
	second := &Partition{Programs: p.Programs, UUID: gpu, Want: []string{"1g.5gb"}, Delay: p.Delay, Dir: p.Dir}
	asked := 0
	p.Progress = func(mig.Step, error) {
		asked++
		if _, err := second.Apply(t.Context()); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d changes its partitions", os.Getpid())) {
			t.Errorf("beside the first one: %v", err)
		}
	}
	if _, err := p.Apply(t.Context()); err != nil || asked == 0 || layout(t, dir) != "0@0" {
		t.Errorf("%q after %d steps: %v", layout(t, dir), asked, err)
	}
	if _, err := second.Apply(t.Context()); err != nil || layout(t, dir) != "19@0" {
		t.Errorf("after the first one: %q, %v", layout(t, dir), err)
	}
}
