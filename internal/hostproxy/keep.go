package hostproxy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// Keeper keeps descriptors open when this process is killed, for the next one.
type Keeper interface {
	Put(name string, files ...*os.File) error
	Remove(name string) error
}

// estate is what the next proxy needs to answer a VMM in the place of a device whose
// proxy was killed: the socket of the connection, and memory with the configuration
// space after a reset and the journal of the connection. QEMU may abort when a socket closes
// under a guest that uses the device.
type estate struct {
	keeper Keeper
	name   string // in the Keeper: "slotN-BINDING-RANDOM", of one plug
	memory *os.File
	bytes  []byte
}

const estateSize = 2 * pcie.ConfigSize // the journal has the second half

// newEstate makes an estate; without a Keeper it is nil, and its methods do nothing.
func newEstate(k Keeper, slot int, binding string, config []byte) (*estate, error) {
	if k == nil {
		return nil, nil
	}
	fd, err := unix.MemfdCreate("dxpu-slot", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	// The end of an earlier connection of the binding removes the earlier name only.
	name := fmt.Sprintf("slot%d-%s-%s", slot, binding, rand.Text())
	x := &estate{keeper: k, name: name, memory: os.NewFile(uintptr(fd), "estate")}
	if err := x.memory.Truncate(estateSize); err != nil {
		return nil, errors.Join(err, x.memory.Close())
	}
	if err := x.mmap(); err != nil {
		return nil, errors.Join(err, x.memory.Close())
	}
	copy(x.bytes[:pcie.ConfigSize], config)
	return x, nil
}

// mmap maps the memory. A shorter file, of another program or another version, would be
// a fault at the first access.
func (x *estate) mmap() error {
	info, err := x.memory.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Size() != estateSize:
		return fmt.Errorf("hostproxy: %v of %d bytes, want a file of %d", info.Mode().Type(), info.Size(), estateSize)
	}
	raw, err := x.memory.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		x.bytes, failed = unix.Mmap(int(fd), 0, estateSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	})
	return errors.Join(err, failed)
}

// journal returns the memory for vfiouser.Config.Journal.
func (x *estate) journal() []byte {
	if x == nil {
		return nil
	}
	return x.bytes[pcie.ConfigSize:][:vfiouser.JournalSize]
}

// put gives the connection to the Keeper.
func (x *estate) put(c *vfiouser.Conn) error {
	if x == nil {
		return nil
	}
	socket, err := c.File()
	if err != nil {
		return err
	}
	return errors.Join(x.keeper.Put(x.name, socket, x.memory), socket.Close())
}

// remove takes the connection back.
func (x *estate) remove() error {
	if x == nil {
		return nil
	}
	return x.keeper.Remove(x.name)
}

// close releases the memory. No server uses the journal any more.
func (x *estate) close() {
	if x != nil {
		_ = errors.Join(unix.Munmap(x.bytes), x.memory.Close())
	}
}

// inherit takes over the files of an estate: a socket and the memory. It returns the
// connection and its slot. After an error all files are closed.
func (x *estate) inherit(files []*os.File) (nc *net.UnixConn, slot int, err error) {
	var conns []net.Conn
	var others []*os.File
	for _, file := range files {
		conn, err := net.FileConn(file) // a duplicate; an error: not a socket
		if err != nil {
			others = append(others, file)
			continue
		}
		_ = file.Close()
		conns = append(conns, conn)
	}
	_, err = fmt.Sscanf(x.name, "slot%d-", &slot)
	if err == nil && len(conns) == 1 && len(others) == 1 {
		var ok bool
		x.memory = others[0]
		if nc, ok = conns[0].(*net.UnixConn); ok {
			err = x.mmap()
		}
		if ok && err == nil {
			return nc, slot, nil
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
	for _, file := range others {
		_ = file.Close()
	}
	return nil, 0, errors.Join(fmt.Errorf("hostproxy: %d stored descriptors named %q are of no use", len(files), x.name), err)
}

// resume answers the VMM of a device whose proxy was killed, until QEMU removes
// the device.
func (f *VM) resume(name string, files []*os.File) error {
	x := &estate{keeper: f.Keeper, name: name}
	nc, slot, err := x.inherit(files)
	if err != nil {
		return errors.Join(err, x.remove())
	}
	server, err := vfiouser.NewServer(f.absentConfig(x))
	if err != nil {
		return err // a mistake of absentConfig
	}
	f.parting.add(slot, func(ctx context.Context) {
		err := server.Resume(ctx, nc)
		f.Logger.Info("VMM disconnected from a device of a killed proxy", "slot", slot, "err", errors.Join(err, x.remove()))
		x.close()
		f.parted(ctx, slot, nil)
	})
	return nil
}

// absentConfig describes a device of which only the configuration space is known.
// Its BARs are as large as any.
func (f *VM) absentConfig(x *estate) vfiouser.Config {
	const rw = vfiouser.RegionFlagRead | vfiouser.RegionFlagWrite
	cfg := vfiouser.Config{
		Resettable: true, WriteMultiple: true, Deadline: f.AccessTimeout, Journal: x.journal(),
		Handler: absent{config: x.bytes[:pcie.ConfigSize]}, Logger: f.Logger,
		IRQs: [vfiouser.NumIRQs]uint32{1, 32, 2048, 1, 1},
	}
	for i := range pcie.MaxBARs {
		cfg.Regions[i] = vfiouser.Region{Size: 1 << 62, Flags: rw}
	}
	cfg.Regions[vfiouser.RegionConfig] = vfiouser.Region{Size: pcie.ConfigSize, Flags: rw}
	return cfg
}

// absent answers as vm does for a device that is gone.
type absent struct {
	vfiouser.NopHandler
	config []byte
}

// Access implements vfiouser.Handler.
func (h absent) Access(_ *vfiouser.Conn, a *vfiouser.Access) {
	switch {
	case a.Write:
	case a.Region == vfiouser.RegionConfig:
		copy(a.Data, h.config[a.Offset:])
	default:
		a.Fail(nil) // all ones
		return
	}
	a.Reply()
}
