package gpu_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/pcie"
)

// The physical function has the SR-IOV capability, as lspci reads it; its virtual
// functions have none, and are single functions.
func TestPhysicalFunction(t *testing.T) {
	const mib = 1 << 20
	p, err := gpu.NewPhysical(gpu.Spec{Model: "V100", VRAM: 256 * mib, Serial: 7}, []int64{128 * mib, 64 * mib, 64*mib - 1<<16})
	if err != nil {
		t.Fatal(err)
	}
	if n := p.Config().VirtualFunctions(); n != 3 || len(p.Slices()) != 3 {
		t.Errorf("%d virtual functions, %d slices", n, len(p.Slices()))
	}
	if id := p.RoutingID(pcie.NewBDF(1, 0, 0), 9); id != pcie.NewBDF(1, 1, 2) {
		t.Errorf("the tenth virtual function is %v", id)
	}
	serials := map[string]bool{}
	for i, s := range p.Slices() {
		info := s.Info()
		serials[info.Serial] = true
		if want := []string{"V100 1/2", "V100 1/4", "V100 25%"}[i]; info.Model != want {
			t.Errorf("slice %d: model %q, want %q", i, info.Model, want)
		}
		if s.Config().SRIOVOffset() != 0 || s.Config().Bytes()[cfgspace.OffIntPin] != 0 {
			t.Errorf("slice %d has an SR-IOV capability or an interrupt pin", i)
		}
		if got := info.BARs[2].Size; got != 32*mib {
			t.Errorf("slice %d: an aperture of %d bytes: all are alike, and fit the smallest", i, got)
		}
	}
	if len(serials) != 3 {
		t.Errorf("serial numbers %v", serials)
	}
	if _, err := exec.LookPath("lspci"); err != nil {
		t.Skip("lspci is not installed; package cfgspace checks what its builders make with its own decoder")
	}
	file := filepath.Join(t.TempDir(), "dump")
	if err := os.WriteFile(file, []byte(cfgspace.HexDump(pcie.NewBDF(1, 0, 0), "GPU", p.Config().Bytes())), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("lspci", "-vvv", "-F", file).CombinedOutput()
	if err != nil {
		t.Fatalf("lspci: %v\n%s", err, out)
	}
	for _, want := range []string{
		"Single Root I/O Virtualization (SR-IOV)", "IOVCtl:	Enable+ Migration- Interrupt- MSE+", "Initial VFs: 16, Total VFs: 16, Number of VFs: 3",
		"VF offset: 1, stride: 1, Device ID: d9b0", "Supported Page Size: 00000553, System Page Size: 00000001",
		"Region 2: Memory at 0000000000000000 (64-bit, prefetchable)",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("lspci does not print %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// The memory of the slices is part of the GPU's, to the byte.
func TestPhysicalMemory(t *testing.T) {
	const step = 64 << 10
	for _, c := range []struct {
		name   string
		memory []int64
		err    string
	}{
		{"all of it", []int64{3 * step, step}, ""},
		{"one step too much", []int64{3 * step, 2 * step}, "slice 2"},
		{"not a multiple", []int64{3*step + 1}, "vram"},
		{"nothing", []int64{3 * step, 0}, "slice 2"},
		{"negative", []int64{-step, 3 * step}, "slice 1"},
		{"no slice", nil, "0 slices"},
		{"too many", make([]int64, 17), "17 slices"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := gpu.NewPhysical(gpu.Spec{VRAM: 4 * step}, c.memory)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}
