package hostproxy

import (
	"context"
	"fmt"
	"sync"

	"github.com/dxpu-project/dxpu/internal/vm/qmp"
)

// blockers keep QEMU from migrating a VM with a device of ours: a migration would
// succeed and lose the device's state.
type blockers struct {
	mu    sync.Mutex // held during QEMU's commands, which it answers at once
	owner map[int]*pluggedVM
}

// blockerNode names the blocker of a slot. QEMU's refusal has this name.
func blockerNode(slot int) string { return fmt.Sprintf("gpu-in-slot-%d", slot) }

// blockMigration comes before the device. It returns the device that blocked before, which
// the guest may still have; nil: none of this proxy.
func (p *pluggedVM) blockMigration(ctx context.Context, client *qmp.Client) (before *pluggedVM) {
	b, slot := &p.front.blockers, p.vm.slot.index
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owner == nil {
		b.owner = map[int]*pluggedVM{}
	}
	before, b.owner[slot] = b.owner[slot], p
	if err := client.BlockMigration(ctx, blockerNode(slot), p.front.SocketDir); err != nil {
		p.log.Warn("QEMU would migrate the VM and lose the device", "err", err)
	}
	return before
}

// undoBlock comes when the plug has failed, also at the end of ctx. An earlier device
// that QEMU still has blocks on.
func (p *pluggedVM) undoBlock(ctx context.Context, client *qmp.Client, before *pluggedVM) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	b, slot := &p.front.blockers, p.vm.slot.index
	b.mu.Lock()
	b.owner[slot] = before // before the question: the device may go at any time
	b.mu.Unlock()
	if here, err := client.HasDevice(ctx, deviceID(slot)); err == nil && !here {
		p.front.allowMigration(ctx, client, slot, before)
	}
}

// allowMigration comes when QEMU no longer has the device.
func (p *pluggedVM) allowMigration(ctx context.Context, client *qmp.Client) {
	p.front.allowMigration(ctx, client, p.vm.slot.index, p)
}

// allowMigration removes the blocker of a slot unless it belongs to another device
// than p; nil is a device of an earlier proxy.
func (f *VM) allowMigration(ctx context.Context, client *qmp.Client, slot int, p *pluggedVM) {
	b := &f.blockers
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owner[slot] != p {
		return
	}
	delete(b.owner, slot)
	if err := client.AllowMigration(ctx, blockerNode(slot)); err != nil {
		f.Logger.Warn("QEMU still refuses to migrate the VM", "slot", slot, "err", err)
	}
}

// parted allows migration after a VMM has disconnected from a device that was taken
// away; p is nil for a device of an earlier proxy. A slot may have had several of those,
// and QEMU tells whether it still has one.
func (f *VM) parted(ctx context.Context, slot int, p *pluggedVM) {
	f.blockers.mu.Lock()
	blocked := f.blockers.owner[slot] == p
	f.blockers.mu.Unlock()
	if f.QMP == "" || !blocked || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	client, done, err := f.control.use(ctx, f.QMP)
	if err != nil {
		return // the VM has ended
	}
	defer done()
	if p == nil {
		if here, err := client.HasDevice(ctx, deviceID(slot)); err != nil || here {
			return
		}
	}
	f.allowMigration(ctx, client, slot, p)
}
