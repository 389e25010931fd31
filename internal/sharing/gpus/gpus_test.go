package gpus_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/internal/sharing/gpus"
)

// write makes files below a folder.
func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	if got, failed, err := gpus.Find(root); failed != nil || len(got) != 0 || err != nil {
		t.Errorf("found %v, %v, %v", got, failed, err)
	}
	write(t, root, map[string]string{
		"sys/bus/pci/devices/0000:3b:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:3b:00.0/class": "0x030200\n",
		"sys/bus/pci/devices/0000:3b:00.1/vendor": "0x10de\n", "sys/bus/pci/devices/0000:3b:00.1/class": "0x040300\n", // its sound
		"sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n", "sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
		"sys/bus/pci/devices/10000:af:1f.7/vendor": "0x10de\n", "sys/bus/pci/devices/10000:af:1f.7/class": "0x030000\n",
		"proc/driver/nvidia/gpus/0000:3b:00.0/information": "Model: \t\t Tesla V100-SXM2-16GB\nIRQ:   \t\t 100\nGPU UUID: \t GPU-01234567-89ab-cdef-0123-456789abcdef\nBus Type: \t PCIe\n",
	})
	got, failed, err := gpus.Find(root)
	if failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	want := []gpus.GPU{
		{
			Address: "0000:3b:00.0", Function: 0x3b00, Model: "Tesla V100-SXM2-16GB",
			UUID: [16]byte{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef},
		},
		{Address: "10000:af:1f.7", Domain: 0x10000, Function: 0xafff},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	write(t, root, map[string]string{"proc/driver/nvidia/gpus/0000:3b:00.0/information": "GPU UUID: none\n"})
	got, failed, err = gpus.Find(root) // the other one is found
	if d := cmp.Diff(want[1:], got); d != "" || err != nil || len(failed) != 1 || !strings.Contains(failed[0].Error(), "GPU 0000:3b:00.0: ") || !strings.Contains(failed[0].Error(), "not a UUID") {
		t.Errorf("errors %v %s", failed, d)
	}
}

// A process that can open no file has not seen that the GPUs are gone.
func TestFindWithoutFiles(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{"sys/bus/pci/devices/0000:3b:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:3b:00.0/class": "0x030200\n"})
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	got, failed, err := gpus.Find(root)
	if back := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); back != nil {
		t.Fatal(back)
	}
	if !errors.Is(err, syscall.EMFILE) || got != nil || failed != nil {
		t.Errorf("found %v, %v, %v", got, failed, err)
	}
}

func TestParse(t *testing.T) {
	for _, s := range []string{"", "3b:00.0", "0000:3b:00", "0000:3b:20.0", "0000:3b:00.8", "0000:xx:00.0", "0:3b:00.0", "123456789:3b:00.0"} {
		if g, err := gpus.ParseAddress(s); err == nil {
			t.Errorf("%q became %+v", s, g)
		}
	}
	for _, s := range []string{"", "GPU-", "01234567-89ab-cdef-0123-456789abcdef", "GPU-01234567-89ab-cdef-0123-456789abcde", "GPU-01234567-89ab-cdef-0123-456789abcdefff"} {
		if u, err := gpus.ParseUUID(s); err == nil {
			t.Errorf("%q became %x", s, u)
		}
	}
	if u, err := gpus.ParseUUID("GPU-????????-????-????-????-????????????"); err != nil || u != [16]byte{} {
		t.Errorf("unknown UUID: %x, %v", u, err)
	}
	if u, err := gpus.ParseUUID("MIG-ffffffff-89ab-cdef-0123-456789abcdef"); err != nil || u[0] != 0xff {
		t.Errorf("UUID of an instance: %x, %v", u, err)
	}
}

func TestMultiprocessors(t *testing.T) {
	for model, want := range map[string]int32{
		"NVIDIA H100 80GB HBM3": 132, "NVIDIA H100 PCIe": 114, "NVIDIA A100-SXM4-40GB": 108, "Tesla T4": 40, "NVIDIA L4": 58, "NVIDIA L40S": 142, "NVIDIA A10": 72,
		"NVIDIA GH200 480GB": 132, "NVIDIA H200 NVL": 132, "NVIDIA A100X": 108, "Tesla V100-SXM2-16GB": 80, "NVIDIA GeForce RTX 4090": 128, "NVIDIA GeForce RTX 4090 D": 114, "NVIDIA GeForce RTX 3090 Ti": 84,
		"Tesla V100S-PCIE-32GB": 80, "NVIDIA T4G": 40, "NVIDIA L40G": 142,
	} {
		if n, ok := gpus.Multiprocessors(model); !ok || n != want {
			t.Errorf("%s has %d multiprocessors, want %d", model, n, want)
		}
	}
	for _, model := range []string{"of another time", "", "NVIDIA RTX A1000", "NVIDIA RTX A2000 12GB", "NVIDIA RTX A4000", "Quadro P4000", "Quadro T400"} {
		if n, ok := gpus.Multiprocessors(model); ok || n <= 0 {
			t.Errorf("unknown model %q: %d, %v", model, n, ok)
		}
	}
}
