package driver

import (
	"fmt"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// QueueError describes the command at which a queue halted (datasheet, section 6).
// The commands before it are complete. Stream.Reset makes the queue usable again.
type QueueError struct {
	Queue int
	Code  reg.Error
	Addr  uint64 // bus or VRAM address
	ID    uint32 // number of the command, counted from 0 since the stream was opened or reset
	Op    reg.Opcode
}

// Error says which command failed, why and where.
func (e *QueueError) Error() string {
	return fmt.Sprintf("driver: queue %d halted at command %d (opcode %d): %v (code %d) at %#x",
		e.Queue, e.ID, e.Op, e.Code, uint32(e.Code), e.Addr)
}
