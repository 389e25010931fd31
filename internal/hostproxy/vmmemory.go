package hostproxy

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/vm/qmp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// remedy is what to do about memory that the proxy cannot use.
const remedy = "start QEMU with -object memory-backend-memfd,id=mem,size=SIZE,share=on -machine memory-backend=mem"

// checkMemory returns an error unless the VM shares its memory. QEMU passes a
// descriptor of private memory too, behind which the guest's writes do not appear. The
// memory of memory-backend-ram has none: only messages reach it, which break PCIe's
// ordering (see VM.MessageDMA).
func (f *VM) checkMemory(ctx context.Context, client *qmp.Client) error {
	backends, err := client.MemoryBackends(ctx)
	if err != nil {
		return plugError(err)
	}
	for _, b := range backends {
		if b.Share {
			continue
		}
		if f.MessageDMA {
			kind, err := client.ObjectType(ctx, b.ID)
			if err != nil {
				return plugError(err)
			}
			if kind == "memory-backend-ram" {
				continue
			}
		}
		return hostFault(fmt.Errorf("the VM's memory %q is private (share=off), so a GPU and the guest would not see each other's data in order: %s", b.ID, remedy))
	}
	return nil
}

var errNoDescriptor = errors.New("memory without a descriptor")

// DMAMap refuses memory that the device could write by messages only, unless the
// operator allows it.
func (v *vm) DMAMap(_ *vfiouser.Conn, m vfiouser.Mapping) error {
	if m.InPlace || !m.Writable || v.messageDMA {
		return nil
	}
	return fmt.Errorf("%d bytes at %#x: %w: %w", m.Size, m.Addr, errNoDescriptor, unix.EOPNOTSUPP)
}

// MapRefused reports the first memory of a connection that the device cannot use: it may have
// been added to the VM since the device was plugged in, and checkMemory knows neither files nor
// the memory of a VM without QMP. Behind an emulated IOMMU a guest can make any number of
// mappings, and each report is a call of the manager.
func (v *vm) MapRefused(_ *vfiouser.Conn, m vfiouser.Mapping, err error) {
	noDescriptor := errors.Is(err, errNoDescriptor)
	s := v.slot
	if v.useless.Load() != nil || !m.Writable || noDescriptor && inPCIHole(m) || errors.Is(err, unix.EEXIST) || !v.inSlot() {
		return
	}
	why := fmt.Sprintf("the GPU cannot use the VM's memory at %#x (%s): %v", m.Addr, sizeText(m.Size), err)
	if noDescriptor {
		why = fmt.Sprintf("the VM does not share its memory at %#x (%s), and the GPU cannot use it: %s", m.Addr, sizeText(m.Size), remedy)
	}
	v.useless.Store(&why)
	if s.Status.Note(why, false) {
		s.host.Changed()
	}
}

// sizeText returns a number of bytes in MiB, or in KiB below one.
func sizeText(n uint64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// trouble returns the detail of an attached device: what MapRefused has found, which may have been
// while the device was plugged in.
func (s *slot) trouble() string {
	p, ok := s.plugged.(*pluggedVM)
	if !ok {
		return ""
	}
	if why := p.vm.useless.Load(); why != nil {
		return *why
	}
	return ""
}

// inSlot reports whether the slot has this device: the guest may still have one that was
// taken away.
func (v *vm) inSlot() bool {
	e := v.slot.host.group.Enter()
	defer v.slot.host.group.Leave(e)
	return !v.lost
}

// inPCIHole reports whether a mapping lies where PCs have no memory, but the
// BARs of devices: a display's memory is mapped there without a descriptor.
func inPCIHole(m vfiouser.Mapping) bool { return m.Addr >= 0xc000_0000 && m.Addr < 1<<32 }
