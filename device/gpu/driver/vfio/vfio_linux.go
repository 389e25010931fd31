package vfio

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
)

// I/O virtual addresses are handed out above 4 GiB, clear of the interrupt
// window, and below 2^39, the least that an IOMMU with three levels translates.
const (
	iovaBase  = 1 << 32
	iovaLimit = 1 << 39
)

// vfioAccess reaches a device through VFIO's container, group and device.
type vfioAccess struct {
	container, group int
	device           *os.File
	configAt         int64 // offset of configuration space in the device file
	req              *os.File
	iova             *driver.Heap // nil without an IOMMU; guarded by Bus.mu
	physical         physical     // without an IOMMU; guarded by Bus.mu
}

// openVFIO binds the device if it may, and opens its group.
func openVFIO(info *Function, opts Options) (a *vfioAccess, mode Mode, err error) {
	if opts.Bind && info.Driver != Driver {
		if err := bindVFIO(info, opts); err != nil {
			return nil, "", err
		}
	}
	if info.Driver != Driver {
		return nil, "", fmt.Errorf("driver is %q, want %s", info.Driver, Driver)
	}
	if info.IOMMUGroup == "" {
		return nil, "", errors.New("no IOMMU group: VFIO without IOMMU is switched off (vfio.enable_unsafe_noiommu_mode)")
	}
	a = &vfioAccess{container: -1, group: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
			a = nil
		}
	}()
	if mode, err = a.openGroup(info.IOMMUGroup, opts); err != nil {
		return a, "", err
	}
	if err = a.attach(mode); err != nil {
		return a, "", err
	}
	return a, mode, a.openDevice(info.Address)
}

func bindVFIO(info *Function, opts Options) error {
	if info.IOMMUGroup == "" {
		// Without the module there is no such file, and Bind says so.
		_ = write(filepath.Join(opts.SysFS, "module/vfio/parameters/enable_unsafe_noiommu_mode"), "Y")
	}
	if err := Bind(opts.SysFS, info.Address, Driver); err != nil {
		return err
	}
	bound, err := Lookup(os.DirFS(opts.SysFS), info.Address)
	*info = bound
	return err
}

func (a *vfioAccess) openGroup(number string, opts Options) (Mode, error) {
	var errs []error
	for _, g := range []struct {
		mode Mode
		file string
	}{{IOMMU, number}, {NoIOMMU, "noiommu-" + number}} {
		if opts.Mode != Auto && opts.Mode != g.mode {
			continue
		}
		fd, err := unix.Open(filepath.Join(opts.DevFS, "vfio", g.file), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			errs = append(errs, fmt.Errorf("group %s: %w", g.file, err))
			continue
		}
		a.group = fd
		a.container, err = unix.Open(filepath.Join(opts.DevFS, "vfio/vfio"), unix.O_RDWR|unix.O_CLOEXEC, 0)
		return g.mode, err
	}
	return "", errors.Join(errs...)
}

// attach joins group, container and IOMMU.
func (a *vfioAccess) attach(mode Mode) error {
	version, err := ioctlValue(a.container, ioGetAPIVersion, "VFIO_GET_API_VERSION", 0)
	if err != nil || version != apiVersion {
		return fmt.Errorf("VFIO speaks version %d, want %d: %w", version, apiVersion, errors.Join(err, errors.ErrUnsupported))
	}
	status := groupStatus{argsz: uint32(unsafe.Sizeof(groupStatus{}))}
	if _, err := ioctl(a.group, ioGroupGetStatus, "VFIO_GROUP_GET_STATUS", &status); err != nil {
		return err
	}
	if status.flags&groupViable == 0 {
		return errors.New("group is not viable: other devices in it have other drivers")
	}
	container := int32(a.container)
	if _, err := ioctl(a.group, ioGroupSetContainer, "VFIO_GROUP_SET_CONTAINER", &container); err != nil {
		return err
	}
	iommu := uintptr(iommuType1v2)
	if mode == NoIOMMU {
		iommu = iommuNone
	} else {
		a.iova = driver.NewHeap(iovaBase, iovaLimit-iovaBase)
	}
	_, err = ioctlValue(a.container, ioSetIOMMU, "VFIO_SET_IOMMU", iommu)
	return err
}

func (a *vfioAccess) openDevice(address string) error {
	name := append([]byte(address), 0)
	fd, err := ioctl(a.group, ioGroupGetDeviceFD, "VFIO_GROUP_GET_DEVICE_FD", &name[0])
	if err != nil {
		return err
	}
	unix.CloseOnExec(fd)
	a.device = os.NewFile(uintptr(fd), address)
	info, err := a.regionInfo(regionConfig)
	if err != nil {
		return err
	}
	a.configAt = int64(info.offset)
	// Kernels before 3.19 have no such interrupt: then unplugging has to wait for Close.
	if f, err := a.events(irqRequest, 1); err == nil {
		a.req = f[0]
	}
	return nil
}

// ioctlDevice calls with the device's descriptor, which stays open meanwhile.
func (a *vfioAccess) ioctlDevice(call func(fd int) error) error {
	raw, err := a.device.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = call(int(fd)) }); err != nil {
		return err
	}
	return inner
}

func (a *vfioAccess) regionInfo(i int) (regionInfo, error) {
	info := regionInfo{argsz: uint32(unsafe.Sizeof(regionInfo{})), index: uint32(i)}
	err := a.ioctlDevice(func(fd int) error {
		_, err := ioctl(fd, ioGetRegionInfo, "VFIO_DEVICE_GET_REGION_INFO", &info)
		return err
	})
	return info, err
}

func (a *vfioAccess) config(off int, p []byte, wr bool) error {
	if wr {
		_, err := a.device.WriteAt(p, a.configAt+int64(off))
		return err
	}
	_, err := a.device.ReadAt(p, a.configAt+int64(off))
	return err
}

func (a *vfioAccess) region(i int) (*mapped, error) {
	info, err := a.regionInfo(i)
	if err != nil {
		return nil, err
	}
	if info.size == 0 {
		return nil, errors.New("not implemented by the device")
	}
	if info.flags&regionMmap == 0 || info.flags&regionWrite == 0 {
		return nil, fmt.Errorf("cannot be mapped (flags %#x): %w", info.flags, errors.ErrUnsupported)
	}
	var r *mapped
	err = a.ioctlDevice(func(fd int) error {
		r, err = mapRegion(fd, int64(info.offset), info.size)
		return err
	})
	return r, err
}

func (a *vfioAccess) enableMSIX(n int) ([]*os.File, error) {
	info := irqInfo{argsz: uint32(unsafe.Sizeof(irqInfo{})), index: irqMSIX}
	err := a.ioctlDevice(func(fd int) error {
		_, err := ioctl(fd, ioGetIRQInfo, "VFIO_DEVICE_GET_IRQ_INFO", &info)
		return err
	})
	if err != nil {
		return nil, err
	}
	if n < 1 || n > maxVectors || uint32(n) > info.count {
		return nil, fmt.Errorf("%d vectors of %d asked for: %w", n, info.count, driver.ErrNoInterrupts)
	}
	return a.events(irqMSIX, n)
}

// events makes n event descriptors and lets an interrupt trigger them.
func (a *vfioAccess) events(index uint32, n int) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				err = errors.Join(err, f.Close())
			}
			files = nil
		}
	}()
	set := irqSet{argsz: irqSetHeader + 4*uint32(n), flags: irqSetEventFD | irqSetTrigger, index: index, count: uint32(n)}
	for i := range n {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			return files, err
		}
		set.fds[i] = int32(fd)
		files = append(files, os.NewFile(uintptr(fd), "eventfd"))
	}
	return files, a.ioctlDevice(func(fd int) error {
		_, err := ioctl(fd, ioSetIRQs, "VFIO_DEVICE_SET_IRQS", &set)
		return err
	})
}

func (a *vfioAccess) mapDMA(mem []byte) ([]driver.Segment, error) {
	if a.iova == nil {
		return a.physical.mapDMA(mem)
	}
	iova, err := a.iova.Alloc(uint64(len(mem)), pageSize)
	if err != nil {
		return nil, err
	}
	m := dmaMap{
		argsz: uint32(unsafe.Sizeof(dmaMap{})), flags: dmaRead | dmaWrite,
		vaddr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), iova: iova, bytes: uint64(len(mem)),
	}
	if _, err := ioctl(a.container, ioMapDMA, "VFIO_IOMMU_MAP_DMA", &m); err != nil {
		if errors.Is(err, unix.ENOMEM) {
			err = fmt.Errorf("%w (see ulimit -l)", err)
		}
		return nil, errors.Join(err, a.iova.Free(iova))
	}
	return []driver.Segment{{Addr: iova, Len: len(mem)}}, nil
}

func (a *vfioAccess) unmapDMA(mem []byte, segments []driver.Segment) error {
	if a.iova == nil {
		return a.physical.unmapDMA(mem)
	}
	if a.container < 0 {
		return nil // closing the container has unmapped everything
	}
	u := dmaUnmap{argsz: uint32(unsafe.Sizeof(dmaUnmap{})), iova: segments[0].Addr, bytes: uint64(len(mem))}
	_, err := ioctl(a.container, ioUnmapDMA, "VFIO_IOMMU_UNMAP_DMA", &u)
	return errors.Join(err, a.iova.Free(segments[0].Addr))
}

func (a *vfioAccess) reset() error {
	return a.ioctlDevice(func(fd int) error {
		_, err := ioctlValue(fd, ioDeviceReset, "VFIO_DEVICE_RESET", 0)
		return err
	})
}

func (a *vfioAccess) request() *os.File { return a.req }

// close gives device, group and container back, in this order; the kernel stops
// the device's DMA when the device is closed.
func (a *vfioAccess) close() error {
	var errs []error
	if a.device != nil {
		errs = append(errs, a.device.Close())
	}
	for _, fd := range []*int{&a.group, &a.container} {
		if *fd >= 0 {
			errs = append(errs, unix.Close(*fd))
			*fd = -1
		}
	}
	return errors.Join(errs...)
}
