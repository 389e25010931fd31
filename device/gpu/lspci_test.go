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

// lspci, an independent decoder, names everything that the GPU has.
func TestLspci(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{Serial: 0x0102030405060708})
	dump := r.host.ReadConfigSpace()
	if _, err := exec.LookPath("lspci"); err != nil {
		t.Skip("lspci is not installed; package cfgspace checks what its builders make with its own decoder")
	}
	file := filepath.Join(t.TempDir(), "dump")
	if err := os.WriteFile(file, []byte(cfgspace.HexDump(pcie.NewBDF(1, 0, 0), "GPU", dump)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("lspci", "-vvv", "-F", file).CombinedOutput()
	if err != nil {
		t.Fatalf("lspci: %v\n%s", err, out)
	}
	for _, want := range []string{
		"Processing accelerators: Device 1234:d9b0", "Mem+ BusMaster+", "Region 0: Memory at 80000000 (32-bit, non-prefetchable)",
		"Region 2: Memory at 4000000000 (64-bit, prefetchable)", "Power Management", "MSI-X: Enable+ Count=16", "Vector table: BAR=4 offset=00000000",
		"Express (v2) Endpoint", "FLReset+", "Width x16", "Advanced Error Reporting", "Device Serial Number 01-02-03-04-05-06-07-08",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("lspci does not print %q", want)
		}
	}
	for _, bad := range []string{"chain looped", "chain broken", "!!!", "access denied", "nknown", "unreadable"} {
		if strings.Contains(string(out), bad) {
			t.Errorf("lspci prints %q", bad)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}
