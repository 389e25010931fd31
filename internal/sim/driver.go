package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// Where the driver keeps what it shares with the GPU, as offsets in host memory;
// what lies behind is the user's.
const (
	ringAt     = 0
	ringSize   = 64 // entries
	fenceAt    = 0x2000
	statusAt   = 0x2010
	startAt    = 0x2020 // time stamps
	endAt      = 0x2028
	DriverSize = 0x4000 // bytes of host memory that the driver takes
)

// commandTimeout bounds a submission in virtual time.
const commandTimeout = time.Minute

// Driver is the least that drives the software GPU: one queue, one submission
// at a time. Package gpudrv has the real one, which needs real time.
type Driver struct {
	w     *World
	regs  uint64 // bus address of BAR 0
	tail  uint32
	fence uint64
}

// OpenGPU enumerates the bus and starts a queue of the GPU. Time passes.
func (w *World) OpenGPU() (*Driver, error) {
	if len(w.Memory) < DriverSize {
		return nil, fmt.Errorf("sim: the driver needs %d bytes of host memory", DriverSize)
	}
	f, err := w.Enumerate()
	if err != nil {
		return nil, err
	}
	bar, ok := f.BAR(reg.BARRegisters)
	if !ok {
		return nil, errors.New("sim: the device has no registers")
	}
	d := &Driver{w: w, regs: bar.Range.Base}
	if id, err := w.MemoryRead32(d.regs + reg.ID); err != nil || id != reg.Magic {
		return nil, fmt.Errorf("sim: ID register %#x, want %#x: %w", id, reg.Magic, errors.Join(err))
	}
	q := d.regs + reg.Queue
	w.write64(q+reg.QRingBase, MemoryBase+ringAt)
	w.write32(q+reg.QRingSize, ringSize)
	w.write64(q+reg.QStatusAddr, MemoryBase+statusAt)
	w.write32(q+reg.QControl, reg.QControlEnable)
	return d, nil
}

// Register reads a 64-bit register of the GPU. Time passes.
func (d *Driver) Register(off uint64) (uint64, error) {
	var b [8]byte
	err := d.w.Read(d.regs+off, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

func (w *World) write32(addr uint64, v uint32) {
	w.Write(addr, binary.LittleEndian.AppendUint32(nil, v))
}
func (w *World) write64(addr, v uint64) { w.Write(addr, binary.LittleEndian.AppendUint64(nil, v)) }

// Do submits commands, less than the ring holds, and waits until the GPU says
// by a fence that it has done them. Time passes.
func (d *Driver) Do(commands ...reg.Command) error {
	if len(commands) >= ringSize {
		return fmt.Errorf("sim: %d commands, at most %d", len(commands), ringSize-1)
	}
	m := d.w.Memory
	d.fence++
	for _, c := range append(commands, reg.Fence(0, MemoryBase+fenceAt, d.fence)) {
		c.Append(m[ringAt+d.tail%ringSize*reg.CommandSize:][:0])
		d.tail++
	}
	d.w.write32(d.regs+reg.Queue+reg.QDoorbell, d.tail)
	err := d.w.RunUntil(d.w.Now()+commandTimeout, func() bool {
		return binary.LittleEndian.Uint64(m[fenceAt:]) == d.fence || d.halted()
	})
	if err != nil {
		return err
	}
	if d.halted() {
		s, _, err := reg.ParseStatusBlock(m[statusAt:])
		return fmt.Errorf("sim: the queue halted: %+v: %w", s, errors.Join(err))
	}
	return nil
}

func (d *Driver) halted() bool { return binary.LittleEndian.Uint32(d.w.Memory[statusAt:]) != 0 }

// Time does commands and returns how long they took by the clock of the GPU:
// between two time stamps in its queue, as a program with events measures it.
func (d *Driver) Time(commands ...reg.Command) (time.Duration, error) {
	commands = append([]reg.Command{reg.StampTime(0, MemoryBase+startAt)}, commands...)
	if err := d.Do(append(commands, reg.StampTime(0, MemoryBase+endAt))...); err != nil {
		return 0, err
	}
	m := d.w.Memory
	return time.Duration(binary.LittleEndian.Uint64(m[endAt:]) - binary.LittleEndian.Uint64(m[startAt:])), nil
}
