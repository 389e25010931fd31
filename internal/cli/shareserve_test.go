//go:build linux

package cli

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A GPU that cannot be read, or that nvidia-smi does not list, keeps no other one from being
// shared, and the log says which it is.
func TestFindLeavesOutGPUs(t *testing.T) {
	root, bin := t.TempDir(), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for address, information := range map[string]string{
		"0000:01:00.0": "Model: NVIDIA A100-SXM4-40GB\n",
		"0000:02:00.0": "GPU UUID: none\n",                         // it cannot be read
		"0000:03:00.0": "Model: NVIDIA A100-SXM4-40GB\n",           // fallen off the bus
		"0000:04:00.0": "Model: NVIDIA A10M\nGPU UUID: GPU-????-?", // a model that is not known
	} {
		write(filepath.Join(root, "sys/bus/pci/devices", address, "vendor"), "0x10de\n")
		write(filepath.Join(root, "sys/bus/pci/devices", address, "class"), "0x030200\n")
		write(filepath.Join(root, "proc/driver/nvidia/gpus", address, "information"), information)
	}
	smi := func(lines ...string) {
		write(filepath.Join(bin, "nvidia-smi"), "#!/bin/sh\nprintf x >> "+filepath.Join(bin, "runs")+"\ncat <<END\n"+strings.Join(lines, "\n")+"\nEND\n")
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	smi("GPU-1, 00000000:01:00.0, NVIDIA A100-SXM4-40GB, 40960", "GPU-04000000-0000-0000-0000-000000000000, 00000000:04:00.0, NVIDIA A10M, 24576")
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	list, missing, err := (&shareServe{root: root}).find(t.Context(), log)
	if err != nil || len(missing) != 2 || len(list) != 2 || list[0].Name != "0000:01:00.0" || list[1].Name != "0000:04:00.0" {
		t.Errorf("found %+v, %v", list, err)
	} else if list[1].UUID[0] != 4 { // no program had opened it before nvidia-smi did
		t.Errorf("the UUID is %x, not that of nvidia-smi", list[1].UUID)
	}
	for _, want := range []string{`level=WARN msg="GPU is left out" gpu=0000:02:00.0 why="it cannot be read: `, `level=WARN msg="GPU is left out" gpu=0000:03:00.0 why="its memory is not known`, `gpu=0000:04:00.0 model="NVIDIA A10M" taken=80`} {
		if n := strings.Count(text.String(), want); n != 1 {
			t.Errorf("%d of %q in the log:\n%s", n, want, text.String())
		}
	}
	text.Reset()
	o := &shareServe{root: root, gpus: []string{"0000:01:00.0", "0000:02:00.0", "0000:09:00.0", "0000:03:00.0,memory=1GiB"}}
	list, missing, err = o.find(t.Context(), log)
	if err != nil || len(list) != 2 || list[0].Name != "0000:01:00.0" || list[1].Name != "0000:03:00.0" || len(missing) != 2 || !strings.Contains(missing["0000:09:00.0"], "no NVIDIA GPU") {
		t.Errorf("with --gpu: %+v, missing %v, %v", list, missing, err)
	}
	for _, want := range []string{`level=ERROR msg="GPU that --gpu names is missing: the agent starts without it" gpu=0000:02:00.0`, "gpu=0000:09:00.0"} {
		if n := strings.Count(text.String(), want); n != 1 {
			t.Errorf("%d of %q in the log:\n%s", n, want, text.String())
		}
	}
	for _, wrong := range [][]string{{"0000:09:00.0"}, {"0000:01:00.0", "0000:01:00.0"}, {"0000:01:00.0", "9:0"}, {"0000:01:00.0", "test"}, {"0000:01:00.0", "0000:03:00.0,memory=many"}, {"0000:01:00.0", "0000:09:00.0,sms=0"}} {
		if _, _, err := (&shareServe{root: root, gpus: wrong}).find(t.Context(), log); err == nil {
			t.Errorf("--gpu %q: no error", wrong)
		}
	}
	// A GPU that leaves or comes is found by the next look, and nvidia-smi runs only then.
	o = &shareServe{root: root}
	runs := func() int {
		text, err := os.ReadFile(filepath.Join(bin, "runs"))
		if err != nil {
			t.Error(err)
		}
		return strings.Count(string(text), "x")
	}
	if err := os.Remove(filepath.Join(bin, "runs")); err != nil {
		t.Fatal(err)
	}
	smi("GPU-1, 00000000:01:00.0, NVIDIA A100-SXM4-40GB, 40960", "GPU-04000000-0000-0000-0000-000000000000, 00000000:04:00.0, NVIDIA A10M, 24576", "GPU-3, 00000000:03:00.0, NVIDIA A100-SXM4-40GB, 40960")
	for _, want := range []int{3, 3} {
		if list, missing, err := o.look(t.Context()); err != nil || len(list) != want || len(missing) != 1 || runs() != 1 {
			t.Errorf("look: %+v, missing %v, %v, %d runs", list, missing, err, runs())
		}
	}
	if err := os.RemoveAll(filepath.Join(root, "sys/bus/pci/devices/0000:03:00.0")); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(bin, "nvidia-smi"), "#!/bin/sh\nprintf x >> "+filepath.Join(bin, "runs")+"\nexit 9\n")
	for i, uuid := range []string{"????????-????-????-????-????????????", "04000000-0000-0000-0000-000000000000"} { // then a program has opened it
		write(filepath.Join(root, "proc/driver/nvidia/gpus/0000:04:00.0/information"), "Model: NVIDIA A10M\nGPU UUID: GPU-"+uuid)
		if list, _, err := o.look(t.Context()); err != nil || len(list) != 2 || list[1].UUID[0] != 4 || runs() != 2+i {
			t.Errorf("without one, while nvidia-smi fails: %+v, %v, %d runs", list, err, runs())
		}
	}
	smi("GPU-9, 00000000:09:00.0, another one, 1024")
	if _, _, err := (&shareServe{root: root}).find(t.Context(), log); err == nil || !strings.Contains(err.Error(), "GPU 0000:01:00.0: its memory is not known") || !strings.Contains(err.Error(), "GPU 0000:02:00.0") {
		t.Errorf("without any GPU: %v", err)
	}
}

// A GPU whose driver is unbound is missing, as is one that is off the bus, also where --gpu
// describes it. One that the driver never had is there as long as the bus has it.
func TestLookMissesGPUs(t *testing.T) {
	root, bin := t.TempDir(), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const listed = "#!/bin/sh\necho GPU-02000000-0000-0000-0000-000000000000, 00000000:02:00.0, NVIDIA A100-SXM4-40GB, 40960\n"
	const one, two = "0000:01:00.0", "0000:02:00.0"
	bus, driver := filepath.Join(root, "sys/bus/pci/devices"), filepath.Join(root, "proc/driver/nvidia/gpus", two)
	for _, address := range []string{one, two} {
		write(filepath.Join(bus, address, "vendor"), "0x10de\n")
		write(filepath.Join(bus, address, "class"), "0x030200\n")
	}
	bind := func() {
		write(filepath.Join(driver, "information"), "Model: NVIDIA A100-SXM4-40GB\nGPU UUID: GPU-02000000-0000-0000-0000-000000000000\n")
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	write(filepath.Join(bin, "nvidia-smi"), listed)
	for _, c := range []struct {
		flags                  []string
		bound, unbound, absent int // GPUs that are found
		why                    string
	}{
		{nil, 1, 0, 0, "driver"},
		{[]string{two + ",memory=1GiB"}, 1, 0, 0, "driver"},
		{[]string{"02:00.0,memory=1GiB"}, 1, 0, 0, "driver"}, // as lspci writes it
		{[]string{one + ",memory=1GiB"}, 1, 1, 0, ""},
		{[]string{one + ",memory=1GiB", two}, 2, 1, 0, "driver"},
	} {
		bind()
		o := &shareServe{root: root, gpus: c.flags}
		look := func(what string, want int) string {
			t.Helper()
			list, missing, err := o.look(t.Context())
			if err != nil || len(list) != want {
				t.Errorf("--gpu %q, %s: %+v, missing %v, %v, want %d", c.flags, what, list, missing, err, want)
			}
			return missing[two]
		}
		if _, _, err := o.find(t.Context(), slog.New(slog.DiscardHandler)); err != nil {
			t.Errorf("--gpu %q: %v", c.flags, err)
		}
		look("bound", c.bound)
		if err := os.RemoveAll(driver); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if why := look("unbound", c.unbound); c.why != "" && !strings.Contains(why, c.why) {
				t.Errorf("--gpu %q: why %q", c.flags, why)
			}
		}
		bind()
		look("bound again", c.bound)
		if err := os.Rename(bus, bus+".away"); err != nil {
			t.Fatal(err)
		}
		look("off the bus", c.absent)
		if err := os.Rename(bus+".away", bus); err != nil {
			t.Fatal(err)
		}
		look("on the bus again", c.bound)
	}
}
