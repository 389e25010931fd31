// Package gpus finds the NVIDIA GPUs of this machine by sysfs and the files of the kernel's
// driver.
package gpus

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// GPU is a GPU on the PCI bus.
type GPU struct {
	Address  string // PCI address, such as 0000:3b:00.0
	Domain   uint32
	Function uint16   // bus << 8 | device << 3 | function
	Model    string   // as the driver names it; "" without the driver
	UUID     [16]byte // zero without the driver
}

// UnreadableError is a GPU on the PCI bus that cannot be read.
type UnreadableError struct {
	Address string
	Err     error
}

func (e *UnreadableError) Error() string { return fmt.Sprintf("GPU %s: %v", e.Address, e.Err) }

func (e *UnreadableError) Unwrap() error { return e.Err }

const (
	nvidia = "0x10de"
	// display is the PCI base class of display controllers, 0x03: VGA and 3D.
	display = "0x03"
	maxText = 64 << 10
)

// Find returns the GPUs, by address, and an error for each one that cannot be read: the
// others can be shared without it. Root is the folder with sys and proc, "/" for this machine.
// Without open files or memory it finds nothing, and returns an error: that says nothing of a GPU.
func Find(root string) (out []GPU, failed []*UnreadableError, err error) {
	bus := filepath.Join(root, "sys/bus/pci/devices")
	devices, err := os.ReadDir(bus)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	for _, d := range devices {
		g, ours, err := find(root, filepath.Join(bus, d.Name()))
		switch {
		case lacks(err):
			return nil, nil, err
		case ours && err != nil:
			failed = append(failed, &UnreadableError{d.Name(), err})
		case ours:
			out = append(out, g)
		}
	}
	return out, failed, nil
}

// lacks reports whether an error is that of a process or machine which lacks something.
func lacks(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// find returns the GPU of a folder of sysfs, and whether it is one.
func find(root, dir string) (g GPU, ours bool, err error) {
	vendor, err := read(filepath.Join(dir, "vendor"))
	if err != nil || vendor != nvidia {
		return g, false, err // gone, or another vendor's
	}
	class, err := read(filepath.Join(dir, "class"))
	if err != nil || !strings.HasPrefix(class, display) {
		return g, false, err
	}
	if g, err = ParseAddress(filepath.Base(dir)); err == nil {
		err = g.describe(filepath.Join(root, "proc/driver/nvidia/gpus", g.Address, "information"))
	}
	return g, true, err
}

// read returns the text of a small file without the space around it.
func read(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxText))
	return strings.TrimSpace(string(text)), err
}

// ParseAddress parses a PCI address, such as 0000:3b:00.0. The domain has four digits or
// more.
func ParseAddress(s string) (GPU, error) {
	wrong := fmt.Errorf("%q is not a PCI address such as 0000:3b:00.0", s)
	domain, rest, ok := strings.Cut(s, ":")
	bus, slot, ok2 := strings.Cut(rest, ":")
	device, function, ok3 := strings.Cut(slot, ".")
	if !ok || !ok2 || !ok3 || len(domain) < 4 || len(bus) != 2 || len(device) != 2 || len(function) != 1 {
		return GPU{}, wrong
	}
	var n [4]uint64
	for i, text := range []string{domain, bus, device, function} {
		var err error
		if n[i], err = strconv.ParseUint(text, 16, 32); err != nil {
			return GPU{}, wrong
		}
	}
	if n[2] > 31 || n[3] > 7 {
		return GPU{}, wrong
	}
	return GPU{
		Address: fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3]), Domain: uint32(n[0]), Function: uint16(n[1]<<8 | n[2]<<3 | n[3]),
	}, nil
}

// describe reads what the driver says of a GPU: lines such as "Model: Tesla V100-SXM2-16GB".
func (g *GPU) describe(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxText))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "Model":
			g.Model = value
		case "GPU UUID":
			if g.UUID, err = ParseUUID(value); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	return lines.Err()
}

// ParseUUID parses the UUID of a GPU or MIG instance as NVIDIA writes it. The driver writes
// question marks before the first program has opened the GPU: they give the zero UUID.
func ParseUUID(s string) ([16]byte, error) {
	text, ok := strings.CutPrefix(s, "GPU-")
	if !ok {
		text, ok = strings.CutPrefix(s, "MIG-")
	}
	if ok && strings.Contains(text, "?") && strings.Trim(text, "?-") == "" {
		return [16]byte{}, nil
	}
	b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if !ok || err != nil || len(b) != 16 {
		return [16]byte{}, fmt.Errorf("%.60q is not a UUID such as GPU-01234567-89ab-cdef-0123-456789abcdef", s)
	}
	return [16]byte(b), nil
}

// models has the multiprocessors of GPUs, most of them for data centres, by words of their
// names, from NVIDIA's data sheets and architecture white papers. A longer name comes before its
// beginning. Whole words count: an RTX A4000 is no A40.
var models = []struct {
	name string
	sms  int32
}{
	{"GH200", 132},
	{"H200", 132},
	{"H100 PCIe", 114},
	{"H100", 132},
	{"A100", 108},
	{"A100X", 108},
	{"A800", 108},
	{"A30", 56},
	{"A30X", 56},
	{"A40", 84},
	{"A10G", 80},
	{"A10", 72},
	{"A16", 10},
	{"A2", 10},
	{"L40S", 142},
	{"L40", 142},
	{"L40G", 142},
	{"L4", 58},
	{"T4", 40},
	{"T4G", 40},
	{"V100", 80},
	{"V100S", 80},
	{"P100", 56},
	{"P40", 30},
	{"P4", 20},
	{"RTX 4090 Laptop", 76},
	{"RTX 4090 D", 114},
	{"RTX 4090", 128},
	{"RTX 3090 Ti", 84},
	{"RTX 3090", 82},
}

// unknownSMs stands for the multiprocessors of a model that is not in the table.
const unknownSMs = 80

// Multiprocessors returns the number of multiprocessors of a model, and whether it is known.
func Multiprocessors(model string) (n int32, known bool) {
	words := " " + strings.Join(strings.FieldsFunc(model, func(r rune) bool { return r == ' ' || r == '-' }), " ") + " "
	for _, m := range models {
		if strings.Contains(words, " "+m.name+" ") {
			return m.sms, true
		}
	}
	return unknownSMs, false
}
