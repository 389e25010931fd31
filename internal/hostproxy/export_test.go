package hostproxy

import "github.com/dxpu-project/dxpu/internal/vm/qmp"

// SetPID says what takes the place of QEMU's process ID.
func (f *VM) SetPID(pid func() int) { f.pid = func(*qmp.Client) int { return pid() } }
