package vfiouser

import (
	"fmt"
	"math"
)

const (
	irqInfoSize = 16
	irqSetSize  = 20
)

// Interrupt indexes of a PCI device (linux/vfio.h).
const (
	IRQINTx uint32 = 0
	IRQMSI  uint32 = 1
	IRQMSIX uint32 = 2
	IRQErr  uint32 = 3
	IRQReq  uint32 = 4
	NumIRQs        = 5
)

// DEVICE_GET_IRQ_INFO flags.
const (
	IRQFlagEventFD    = 1 << 0
	IRQFlagMaskable   = 1 << 1
	IRQFlagAutomasked = 1 << 2
	IRQFlagNoResize   = 1 << 3
)

// IRQInfo is the payload of DEVICE_GET_IRQ_INFO and of its reply.
//
//	 0       4       8       12      16
//	+-------+-------+-------+-------+
//	| argsz | flags | index | count |
//	+-------+-------+-------+-------+
type IRQInfo struct {
	ArgSize uint32
	Flags   uint32 // IRQFlagEventFD and the others
	Index   uint32
	Count   uint32 // vectors
}

// ParseIRQInfo reads a DEVICE_GET_IRQ_INFO payload.
func ParseIRQInfo(b []byte) (IRQInfo, int, error) {
	var i IRQInfo
	if err := readArgs("irq info", b, irqInfoSize, &i.ArgSize, &i.Flags, &i.Index, &i.Count); err != nil {
		return IRQInfo{}, 0, err
	}
	return i, irqInfoSize, nil
}

// Append appends the payload's 16 bytes.
func (i IRQInfo) Append(b []byte) []byte { return append32(b, i.ArgSize, i.Flags, i.Index, i.Count) }

// DEVICE_SET_IRQS flags: one kind of data and one action.
const (
	IRQDataNone      = 1 << 0 // all vectors of the range
	IRQDataBool      = 1 << 1 // one byte for each vector
	IRQDataEventFD   = 1 << 2 // one descriptor for each vector, or none to de-assign
	IRQActionMask    = 1 << 3
	IRQActionUnmask  = 1 << 4
	IRQActionTrigger = 1 << 5

	irqDataMask   = IRQDataNone | IRQDataBool | IRQDataEventFD
	irqActionMask = IRQActionMask | IRQActionUnmask | IRQActionTrigger
)

// IRQSet is the payload of DEVICE_SET_IRQS; the reply has none.
//
//	 0       4       8       12      16      20
//	+-------+-------+-------+-------+-------+-----------------+
//	| argsz | flags | index | start | count | booleans (BOOL) |
//	+-------+-------+-------+-------+-------+-----------------+
type IRQSet struct {
	ArgSize uint32
	Flags   uint32 // one IRQData and one IRQAction
	Index   uint32
	Start   uint32
	Count   uint32
	Bools   []byte // Count bytes with IRQDataBool, else nil; aliases the parsed bytes
}

// ParseIRQSet reads a DEVICE_SET_IRQS payload. It fails unless exactly one kind
// of data and one action are set and the range does not wrap.
func ParseIRQSet(b []byte) (IRQSet, int, error) {
	var s IRQSet
	if err := readArgs("irq set", b, irqSetSize, &s.ArgSize, &s.Flags, &s.Index, &s.Start, &s.Count); err != nil {
		return IRQSet{}, 0, err
	}
	data, action := s.Flags&irqDataMask, s.Flags&irqActionMask
	if data&(data-1) != 0 || data == 0 || action&(action-1) != 0 || action == 0 || s.Flags&^(irqDataMask|irqActionMask) != 0 {
		return IRQSet{}, 0, fmt.Errorf("vfiouser: irq set: flags %#x are not one kind of data and one action", s.Flags)
	}
	if s.Count > math.MaxUint32-s.Start {
		return IRQSet{}, 0, fmt.Errorf("vfiouser: irq set: %d vectors from %d is not a range", s.Count, s.Start)
	}
	n := irqSetSize
	if data == IRQDataBool {
		if uint64(len(b)-n) < uint64(s.Count) {
			return IRQSet{}, 0, shortError("irq set: booleans", len(b)-n, int(s.Count))
		}
		s.Bools = b[n : n+int(s.Count)]
		n += int(s.Count)
	}
	return s, n, nil
}

// Append appends the payload.
func (s IRQSet) Append(b []byte) []byte {
	return append(append32(b, s.ArgSize, s.Flags, s.Index, s.Start, s.Count), s.Bools...)
}
