package vfio

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
)

// sysfsAccess reaches a device through its files in sysfs: no interrupts, and
// physical addresses.
type sysfsAccess struct {
	dir      string
	cfg      *os.File
	physical physical
}

func openSysfs(dir string) (*sysfsAccess, error) {
	if err := checkPhysical(dir); err != nil {
		return nil, err
	}
	cfg, err := os.OpenFile(filepath.Join(dir, "config"), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("sysfs: %w", err)
	}
	a := &sysfsAccess{dir: dir, cfg: cfg}
	if err := write(filepath.Join(dir, "enable"), "1"); err != nil {
		return nil, errors.Join(fmt.Errorf("sysfs: enable: is a driver bound? %w", err), cfg.Close())
	}
	return a, nil
}

// checkPhysical returns an error if an IOMMU translates the addresses of a device: it has no
// mapping for physical ones, so each DMA would fail, and a driver wait for it.
func checkPhysical(dir string) error {
	domain, _ := os.ReadFile(filepath.Join(dir, "iommu_group", "type"))
	if kind := string(domain); strings.HasPrefix(kind, "DMA") || strings.HasPrefix(kind, "blocked") {
		return errors.New("sysfs: the device is behind an IOMMU, which blocks DMA to physical addresses; bind the device to vfio-pci, and use the IOMMU")
	}
	return nil // no IOMMU, one that passes addresses on, or an old kernel that does not say
}

func (a *sysfsAccess) config(off int, p []byte, wr bool) error {
	var err error
	if wr {
		_, err = a.cfg.WriteAt(p, int64(off))
	} else {
		_, err = a.cfg.ReadAt(p, int64(off))
	}
	return err
}

func (a *sysfsAccess) region(i int) (*mapped, error) {
	f, err := os.OpenFile(filepath.Join(a.dir, "resource"+strconv.Itoa(i)), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r, err := mapRegion(int(f.Fd()), 0, uint64(st.Size()))
	return r, errors.Join(err, f.Close())
}

func (a *sysfsAccess) enableMSIX(int) ([]*os.File, error) { return nil, driver.ErrNoInterrupts }

func (a *sysfsAccess) mapDMA(mem []byte) ([]driver.Segment, error) {
	return a.physical.mapDMA(mem)
}

func (a *sysfsAccess) unmapDMA(mem []byte, _ []driver.Segment) error { return a.physical.unmapDMA(mem) }

func (a *sysfsAccess) reset() error { return write(filepath.Join(a.dir, "reset"), "1") }

func (a *sysfsAccess) request() *os.File { return nil }

// close switches bus mastering off: nothing else keeps the device from memory
// that goes back to the kernel.
func (a *sysfsAccess) close() error {
	var command [2]byte
	if err := a.config(cfgspace.OffCommand, command[:], false); err == nil {
		command[0] &^= cfgspace.CmdBusMaster
		_ = a.config(cfgspace.OffCommand, command[:], true) // gone meanwhile: then it cannot
	}
	return a.cfg.Close()
}
