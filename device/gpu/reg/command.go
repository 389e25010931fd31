package reg

import (
	"encoding/binary"
	"errors"
	"math"
)

// Opcode is byte 0 of a command.
type Opcode uint8

// Opcodes.
const (
	OpNop       Opcode = 0
	OpCopy      Opcode = 1
	OpFill      Opcode = 2
	OpKernel    Opcode = 3
	OpFence     Opcode = 4
	OpWait      Opcode = 5
	OpTimestamp Opcode = 6
	OpDelay     Opcode = 7
)

// CommandSize is the size of one ring entry in bytes.
const CommandSize = 64

// Flags of COPY.
const (
	CopySrcBus  = 1 << 0 // Src is a bus address; otherwise a VRAM address
	CopyDstBus  = 1 << 1 // Dst is a bus address; otherwise a VRAM address
	CopySegment = 1 << 2 // the bus address is that of a list of Segments entries
)

// Flags of FENCE.
const (
	FenceWrite     = 1 << 0 // write Value to Addr
	FenceInterrupt = 1 << 1 // set IntQueue and send Vector, after the write
	FenceSemaphore = 1 << 2 // set Semaphore to Value
)

// Flags of KERNEL: the element type in bits 1:0, modifiers above.
const (
	KernelTypeMask = 3
	KernelInverse  = 1 << 2 // FFT: inverse transform, scaled by 1/N
	KernelTransA   = 1 << 3 // GEMM: A is K x M
	KernelTransB   = 1 << 4 // GEMM: B is N x K
)

// DelaySince is the flag of DELAY: Value counts from the beginning of the command
// before, not from its end.
const DelaySince = 1 << 0

// MaxDelay is the longest DELAY in nanoseconds: a second.
const MaxDelay = 1_000_000_000

// ElementType is the number format of a kernel's operands.
type ElementType uint8

// Element types.
const (
	FP16 ElementType = 0 // IEEE 754 binary16; computed in binary32
	FP32 ElementType = 1
	FP64 ElementType = 2
)

// Size is the size of one element in bytes, 0 for a reserved type.
func (t ElementType) Size() int {
	if t > FP64 {
		return 0
	}
	return 2 << t
}

// String names the type.
func (t ElementType) String() string {
	if t > FP64 {
		return "reserved"
	}
	return [...]string{"FP16", "FP32", "FP64"}[t]
}

// KernelID is the computation of a KERNEL command.
type KernelID uint16

// Kernels. A, B and C are VRAM addresses of n elements each, unless stated otherwise;
// n is M.
const (
	KernelGEMM  KernelID = 1 // C (M x N) = Alpha*A (M x K)*B (K x N) + Beta*C, row-major
	KernelFFT   KernelID = 2 // C = FFT(A): N transforms of M complex points (real, imaginary)
	KernelCopy  KernelID = 3 // C = A
	KernelScale KernelID = 4 // C = Alpha*A
	KernelAdd   KernelID = 5 // C = A + B
	KernelTriad KernelID = 6 // C = A + Alpha*B
	KernelRead  KernelID = 7 // C (one FP64) = sum of A
	KernelWrite KernelID = 8 // C = Alpha
)

var kernelNames = [...]string{"", "gemm", "fft", "copy", "scale", "add", "triad", "read", "write"}

// String returns the lower-case name.
func (k KernelID) String() string {
	if k >= 1 && int(k) < len(kernelNames) {
		return kernelNames[k]
	}
	return "reserved"
}

// ErrShort means that the input is shorter than the structure.
var ErrShort = errors.New("reg: structure is cut short")

// Command is one 64-byte ring entry.
//
//	byte  0        1        2               4
//	     +--------+--------+---------------+-------------------------------+
//	   0 | Op     | Flags  | Kernel/Vector | ID                            |
//	   8 | Dst | A | Addr                                                  |
//	  16 | Src | B | Value | Pattern                                       |
//	  24 | Length | C                                                      |
//	  32 | M | Segments | Semaphore         | N                            |
//	  40 | K                               | reserved                      |
//	  48 | Alpha (binary64)                                                |
//	  56 | Beta  (binary64)                                                |
//	     +-----------------------------------------------------------------+
//
// Each opcode uses some of the fields; the others are ignored. The constructors
// (Copy, Fill, Fence and so on) set the fields that the opcode uses.
type Command struct {
	Op    Opcode // byte 0
	Flags uint8  // byte 1
	Sub   uint16 // bytes 2-3: KernelID of KERNEL, MSI-X vector of FENCE
	ID    uint32 // bytes 4-7: the driver's own number, reported when the command fails

	Arg0  uint64 // bytes 8-15: Dst, A, Addr
	Arg1  uint64 // bytes 16-23: Src, B, Value, Pattern
	Arg2  uint64 // bytes 24-31: Length in bytes, C
	Dim0  uint32 // bytes 32-35: M, Segments, Semaphore
	Dim1  uint32 // bytes 36-39: N
	Dim2  uint32 // bytes 40-43: K
	Alpha float64
	Beta  float64
}

// Append appends the 64 bytes of c.
func (c Command) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, uint8(c.Op), c.Flags)
	b = le.AppendUint16(b, c.Sub)
	b = le.AppendUint32(b, c.ID)
	b = le.AppendUint64(b, c.Arg0)
	b = le.AppendUint64(b, c.Arg1)
	b = le.AppendUint64(b, c.Arg2)
	b = le.AppendUint32(b, c.Dim0)
	b = le.AppendUint32(b, c.Dim1)
	b = le.AppendUint32(b, c.Dim2)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, math.Float64bits(c.Alpha))
	return le.AppendUint64(b, math.Float64bits(c.Beta))
}

// ParseCommand reads the first 64 bytes of b. It checks the length only;
// the device checks opcode and fields.
func ParseCommand(b []byte) (Command, int, error) {
	if len(b) < CommandSize {
		return Command{}, 0, ErrShort
	}
	le := binary.LittleEndian
	return Command{
		Op: Opcode(b[0]), Flags: b[1], Sub: le.Uint16(b[2:]), ID: le.Uint32(b[4:]),
		Arg0: le.Uint64(b[8:]), Arg1: le.Uint64(b[16:]), Arg2: le.Uint64(b[24:]),
		Dim0: le.Uint32(b[32:]), Dim1: le.Uint32(b[36:]), Dim2: le.Uint32(b[40:]),
		Alpha: math.Float64frombits(le.Uint64(b[48:])), Beta: math.Float64frombits(le.Uint64(b[56:])),
	}, CommandSize, nil
}

// Nop does nothing; it retires in order.
func Nop(id uint32) Command { return Command{Op: OpNop, ID: id} }

// CopyToVRAM copies length bytes from one contiguous piece of bus memory (host
// memory or a peer's aperture) to VRAM.
func CopyToVRAM(id uint32, dst, srcBus, length uint64) Command {
	return Command{Op: OpCopy, Flags: CopySrcBus, ID: id, Arg0: dst, Arg1: srcBus, Arg2: length}
}

// CopyFromVRAM copies length bytes from VRAM to one contiguous piece of bus memory.
func CopyFromVRAM(id uint32, dstBus, src, length uint64) Command {
	return Command{Op: OpCopy, Flags: CopyDstBus, ID: id, Arg0: dstBus, Arg1: src, Arg2: length}
}

// CopyVRAM copies inside VRAM; the ranges may overlap.
func CopyVRAM(id uint32, dst, src, length uint64) Command {
	return Command{Op: OpCopy, ID: id, Arg0: dst, Arg1: src, Arg2: length}
}

// WithSegments makes the bus address of a COPY that of a list of n Segment entries,
// whose lengths together are at least the length of the copy.
func (c Command) WithSegments(n uint32) Command {
	c.Flags |= CopySegment
	c.Dim0 = n
	return c
}

// Fill writes the 4-byte pattern length/4 times to VRAM; dst and length are
// multiples of 4.
func Fill(id uint32, dst uint64, pattern uint32, length uint64) Command {
	return Command{Op: OpFill, ID: id, Arg0: dst, Arg1: uint64(pattern), Arg2: length}
}

// Launch holds the arguments of Kernel.
type Launch struct {
	Kernel      KernelID
	Type        ElementType
	Flags       uint8 // KernelInverse, KernelTransA, KernelTransB
	A, B, C     uint64
	M, N, K     uint32
	Alpha, Beta float64
}

// Kernel runs a computation on VRAM.
func Kernel(id uint32, l Launch) Command {
	return Command{
		Op: OpKernel, Flags: l.Flags&^KernelTypeMask | uint8(l.Type)&KernelTypeMask, Sub: uint16(l.Kernel), ID: id,
		Arg0: l.A, Arg1: l.B, Arg2: l.C, Dim0: l.M, Dim1: l.N, Dim2: l.K, Alpha: l.Alpha, Beta: l.Beta,
	}
}

// Fence writes value (8 bytes) to addr after the commands before it.
func Fence(id uint32, addr, value uint64) Command {
	return Command{Op: OpFence, Flags: FenceWrite, ID: id, Arg0: addr, Arg1: value}
}

// WithInterrupt makes a FENCE send the MSI-X vector after its write.
func (c Command) WithInterrupt(vector uint16) Command {
	c.Flags |= FenceInterrupt
	c.Sub = vector
	return c
}

// Signal sets a semaphore of the device to value after the commands before it.
func Signal(id, semaphore uint32, value uint64) Command {
	return Command{Op: OpFence, Flags: FenceSemaphore, ID: id, Arg1: value, Dim0: semaphore}
}

// Wait holds its queue until a semaphore is value or more.
func Wait(id, semaphore uint32, value uint64) Command {
	return Command{Op: OpWait, ID: id, Arg1: value, Dim0: semaphore}
}

// Delay holds its queue for the given nanoseconds, up to MaxDelay.
func Delay(id uint32, nanos uint64) Command { return Command{Op: OpDelay, ID: id, Arg1: nanos} }

// DelaySinceStart holds its queue until the given nanoseconds, up to MaxDelay,
// after the command before it began.
func DelaySinceStart(id uint32, nanos uint64) Command {
	return Command{Op: OpDelay, Flags: DelaySince, ID: id, Arg1: nanos}
}

// StampTime writes the device time in nanoseconds (8 bytes) to addr after the
// commands before it.
func StampTime(id uint32, addr uint64) Command { return Command{Op: OpTimestamp, ID: id, Arg0: addr} }

// SegmentSize is the size of one scatter-gather entry in bytes.
const SegmentSize = 16

// Segment is one scatter-gather entry: a contiguous piece of bus memory.
//
//	bytes 0-7 Addr, 8-11 Length, 12-15 reserved
type Segment struct {
	Addr   uint64
	Length uint32 // bytes, not 0
}

// Append appends the 16 bytes of s.
func (s Segment) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, s.Addr)
	b = binary.LittleEndian.AppendUint32(b, s.Length)
	return binary.LittleEndian.AppendUint32(b, 0)
}

// ParseSegment reads the first 16 bytes of b.
func ParseSegment(b []byte) (Segment, int, error) {
	if len(b) < SegmentSize {
		return Segment{}, 0, ErrShort
	}
	return Segment{Addr: binary.LittleEndian.Uint64(b), Length: binary.LittleEndian.Uint32(b[8:])}, SegmentSize, nil
}

// StatusBlockSize is the size of a StatusBlock in bytes.
const StatusBlockSize = 16

// StatusBlock is the structure that a halted queue writes to QStatusAddr.
//
//	bytes 0-3 State, 4-7 Error, 8-11 ID of the command, 12-15 Head
type StatusBlock struct {
	State QueueState
	Error Error
	ID    uint32
	Head  uint32
}

// Append appends the 16 bytes of s.
func (s StatusBlock) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, uint32(s.State))
	b = le.AppendUint32(b, uint32(s.Error))
	b = le.AppendUint32(b, s.ID)
	return le.AppendUint32(b, s.Head)
}

// ParseStatusBlock reads the first 16 bytes of b.
func ParseStatusBlock(b []byte) (StatusBlock, int, error) {
	if len(b) < StatusBlockSize {
		return StatusBlock{}, 0, ErrShort
	}
	le := binary.LittleEndian
	return StatusBlock{
		State: QueueState(le.Uint32(b)), Error: Error(le.Uint32(b[4:])), ID: le.Uint32(b[8:]), Head: le.Uint32(b[12:]),
	}, StatusBlockSize, nil
}
