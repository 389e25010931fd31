// Package reg is the programming interface of the DxPU software GPU as data:
// register offsets, bit fields, command opcodes and the layouts of structures in
// host memory. The device and its driver both use it; the datasheet
// (device/gpu/README.md) explains it in prose.
//
// Everything is little-endian.
package reg

// PCI identity. 0x1234 is the vendor ID that QEMU's own virtual devices carry;
// the PCI-SIG has not assigned it, so no physical device has it and no driver of a
// vendor binds. QEMU uses 1234:1111 (VGA), 1234:11e8 (edu)
// and 1234:0001/1234:1100 besides; 0xd9b0 is ours.
const (
	VendorID    = 0x1234
	DeviceID    = 0xd9b0
	SubVendorID = 0x1234
	SubDeviceID = 0x0001
	ClassCode   = 0x120000 // processing accelerator
	Revision    = 0x01
)

// BARs.
const (
	BARRegisters = 0 // 32-bit, not prefetchable, RegistersSize bytes
	BARVRAM      = 2 // 64-bit, prefetchable, the aperture into VRAM
	BARMSIX      = 4 // 32-bit, not prefetchable, MSIXSize bytes

	RegistersSize = 64 << 10
	MSIXSize      = 16 << 10
	MSIXTable     = 0      // offset of the MSI-X table in BARMSIX
	MSIXPBA       = 0x2000 // offset of the pending bit array in BARMSIX
	MaxVectors    = 64
)

// Device registers: offsets in BARRegisters. Widths are in bytes; a 64-bit
// register may be accessed as one 8-byte or two 4-byte accesses, low half first.
const (
	ID           = 0x000 // RO 4: Magic
	Version      = 0x004 // RO 4: InterfaceVersion
	Caps         = 0x008 // RO 4: Cap* bits
	Layout       = 0x00c // RO 4: queues 7:0, copy engines 15:8, MSI-X vectors 23:16, semaphores 31:24
	Status       = 0x010 // RO 4: Status* bits
	Control      = 0x014 // RW 4: Control* bits
	ErrorCode    = 0x018 // RW 4: code of the newest error; any write clears ErrorCode, ErrorInfo and ErrorAddr
	ErrorInfo    = 0x01c // RO 4: queue of the newest error 7:0
	ErrorAddr    = 0x020 // RO 8: address of the newest error
	ErrorCount   = 0x028 // RO 4: errors since reset
	XID          = 0x02c // RO 4: newest XID* event, 0 when healthy
	IntStatus    = 0x030 // RW1C 4: Int* bits
	IntMask      = 0x034 // RW 4: 1 = does not interrupt; all ones after reset
	IntVector    = 0x038 // RW 4: MSI-X vector of device events (IntDevice)
	VRAMSize     = 0x040 // RO 8: bytes
	ApertureSize = 0x048 // RO 8: bytes, the size of BARVRAM
	ApertureBase = 0x050 // RW 8: VRAM address that offset 0 of BARVRAM shows; multiple of ApertureAlign
	Serial       = 0x058 // RO 8: the number of the Device Serial Number capability
	Timestamp    = 0x060 // RO 8: device time in ns; a read of the low half latches the high half
	Model        = 0x080 // RO ModelSize: ASCII, zero-padded
	Scratch      = 0x0c0 // RW 4 x ScratchCount: no function
	Temperature  = 0x100 // RO 4: thousandths of a degree Celsius
	Power        = 0x104 // RO 4: milliwatts
	ECCCorrected = 0x108 // RO 4: single-bit errors corrected
	ECCFatal     = 0x10c // RO 4: double-bit errors
	ClockMHz     = 0x110 // RO 4
	Tags         = 0x120 // RO 4: reads that may be outstanding now (Spec.Tags and the tag enables of Device Control)
	ReadSize     = 0x124 // RO 4: bytes of one DMA read request now
	WriteSize    = 0x128 // RO 4: bytes of one DMA write now
	TagsInUse    = 0x12c // RO 4
)

// Performance counters: 8 bytes each, read-only, cleared by a reset.
const (
	CountReadTLPs     = 0x200 // DMA read requests sent
	CountReadBytes    = 0x208 // bytes asked for
	CountWriteTLPs    = 0x210 // DMA writes sent, without fences and interrupts
	CountWriteBytes   = 0x218
	CountCommands     = 0x220 // commands retired
	CountKernels      = 0x228 // kernels finished
	CountFences       = 0x230 // fences written
	CountInterrupts   = 0x238 // MSI-X messages sent
	CountTimeouts     = 0x240 // completion timeouts
	CountUnexpected   = 0x248 // completions without an outstanding request
	CountUnsupported  = 0x250 // requests answered with Unsupported Request
	CountKernelNanos  = 0x258 // modelled run time of kernels, ns
	CountersEnd       = 0x260
	ModelSize         = 64
	ScratchCount      = 8
	ApertureAlign     = 64 << 10
	Magic             = 0x55505844 // "DXPU"
	InterfaceVersion  = 1<<16 | 7  // major 31:16, minor 15:0; minor 1 brought DELAY, minor 2 the compute channel, minor 3 its features, minor 4 images, minor 5 sub-groups, minor 6 shared virtual memory, minor 7 the timer
	DefaultQueues     = 8
	SemaphoreCount    = 32
	MaxRingEntries    = 1 << 16
	MinRingEntries    = 2
	RingAlign         = 64
	FenceAlign        = 8
	MaxTransfer       = 1 << 40 // bytes of one COPY
	MaxSegmentEntries = 1 << 28 // entries of one scatter-gather list
)

// Bits of Caps.
const (
	CapFP16    = 1 << 0 // kernels take half precision
	CapFP64    = 1 << 1
	CapPeer    = 1 << 2 // COPY takes any bus address
	CapINTx    = 1 << 3 // interrupt pin A is wired
	CapCompute = 1 << 4 // the compute channel has an engine
)

// Bits of Status.
const (
	StatusReady = 1 << 0 // registers answer, commands are taken
	StatusBusy  = 1 << 1 // a queue has unfinished commands
	StatusFault = 1 << 2 // a queue is halted or XID is set
)

// Bits of Control.
const (
	ControlReset = 1 << 0 // self-clearing: resets the device as a Function Level Reset does, except configuration space
)

// Bits of IntStatus and IntMask.
const (
	IntQueue      = 1 << 0  // shifted by the queue number: a FENCE with FenceInterrupt retired
	IntQueueFault = 1 << 8  // shifted by the queue number: the queue halted
	IntDevice     = 1 << 16 // an event that no queue caused: an uncorrectable memory error
)

// Queue registers: queue q stands at Queue + q*QueueStride.
const (
	Queue       = 0x1000
	QueueStride = 0x100

	QRingBase   = 0x00 // RW 8: bus address of the ring, multiple of RingAlign; only while disabled
	QRingSize   = 0x08 // RW 4: entries, a power of two from MinRingEntries to MaxRingEntries; only while disabled
	QControl    = 0x0c // RW 4: QControl* bits
	QDoorbell   = 0x10 // RW 4: tail: commands written to the ring since enable, modulo 2^32
	QHead       = 0x14 // RO 4: commands retired since enable, modulo 2^32
	QState      = 0x18 // RO 4: QueueState
	QError      = 0x1c // RO 4: Error that halted the queue
	QErrorAddr  = 0x20 // RO 8: bus or VRAM address of the error
	QErrorID    = 0x28 // RO 4: ID field of the command that failed
	QVector     = 0x2c // RW 4: MSI-X vector of the queue's fault; FENCE names its own
	QFence      = 0x30 // RO 8: value of the newest fence written
	QStatusAddr = 0x38 // RW 8: bus address that gets a StatusBlock when the queue halts, 0 for none
)

// Bits of QControl.
const (
	QControlEnable = 1 << 0 // 0 to 1 starts the queue at index 0; 1 to 0 stops it and drops its commands
)

// Semaphores: 8 bytes each, read-write: semaphore i stands at Semaphore + 8*i.
const (
	Semaphore = 0x2000
)

// QueueState is the content of QState.
type QueueState uint32

// Queue states.
const (
	QueueDisabled QueueState = 0
	QueueIdle     QueueState = 1 // enabled, head == tail
	QueueBusy     QueueState = 2
	QueueHalted   QueueState = 3 // an error stopped it; disable and enable again
)

// String names the state.
func (s QueueState) String() string {
	if s > QueueHalted {
		return "reserved"
	}
	return [...]string{"disabled", "idle", "busy", "halted"}[s]
}

// Error is the reason why a queue halted: the content of QError and ErrorCode.
type Error uint32

// Errors.
const (
	NoError       Error = 0
	ErrRing       Error = 1  // ring base, size or doorbell out of bounds
	ErrOpcode     Error = 2  // unknown opcode
	ErrParameter  Error = 3  // reserved flag, alignment, length, or a combination that does not exist
	ErrRange      Error = 4  // outside VRAM
	ErrKernel     Error = 5  // unknown kernel or element type, or dimensions out of bounds
	ErrSegments   Error = 6  // scatter-gather list too short, too long, or with an empty entry
	ErrVector     Error = 7  // interrupt vector or semaphore that does not exist
	ErrDMARefused Error = 8  // completion with Unsupported Request
	ErrDMAAborted Error = 9  // completion with Completer Abort or a reserved status
	ErrDMATimeout Error = 10 // no completion in time
	ErrDMAPoison  Error = 11 // completion with poisoned data
	ErrECC        Error = 12 // uncorrectable memory error
)

var errorNames = [...]string{
	"no error", "bad ring", "unknown opcode", "bad parameter", "outside VRAM", "bad kernel", "bad segment list",
	"bad vector", "DMA refused", "DMA aborted", "DMA timeout", "DMA data poisoned", "uncorrectable memory error",
}

// String describes the error.
func (e Error) String() string {
	if int(e) < len(errorNames) {
		return errorNames[e]
	}
	return "reserved error"
}

// XID codes, numbered like those that operators know from physical GPUs.
const (
	XIDNone      = 0
	XIDEngine    = 13 // a command was refused
	XIDFault     = 31 // a DMA or VRAM access failed
	XIDDoubleBit = 48 // uncorrectable memory error
	XIDLost      = 79 // the device has fallen off the bus
)
