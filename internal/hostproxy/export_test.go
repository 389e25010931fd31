package hostproxy

import (
	"context"

	"github.com/dxpu-project/dxpu/internal/vm/qmp"
)

// SetPID says what takes the place of QEMU's process ID.
func (f *VM) SetPID(pid func() int) { f.pid = func(*qmp.Client) int { return pid() } }

// PartEarlier is the end of a VMM's connection to a device of an earlier proxy.
func (f *VM) PartEarlier(ctx context.Context, slot int) {
	if f.control == nil {
		f.control = newControl()
	}
	f.parted(ctx, slot, nil)
}
