package reg

import "encoding/binary"

// Registers of the compute channel, since minor 2 of InterfaceVersion. A GPU without
// a compute engine reads zero there.
const (
	ComputeKindReg   = 0x3000 // RO 4: ComputeKind
	ComputeVersion   = 0x3004 // RO 4: PacketVersion
	ComputeControl   = 0x3008 // RW 4: ComputeEnable
	ComputeStateReg  = 0x300c // RO 4: ComputeState
	ComputeErrorReg  = 0x3010 // RO 4: ComputeError
	ComputeTail      = 0x3014 // RW 4: doorbell: bytes put into the ring, modulo 2^32
	ComputeHead      = 0x3018 // RO 4: bytes taken from the ring, modulo 2^32
	ComputeEvents    = 0x301c // RO 4: events written, modulo 2^32
	ComputeSeen      = 0x3020 // RW 4: events that the driver has read, modulo 2^32
	ComputeVector    = 0x3024 // RW 4: MSI-X vector after new events; ComputeNoVector for none
	ComputeRing      = 0x3028 // RW 8: VRAM address of the ring, multiple of RingAlign; only while off
	ComputeRingSize  = 0x3030 // RW 4: bytes of the ring; only while off
	ComputeEventSize = 0x3034 // RW 4: entries of the event ring; only while off
	ComputeEventBase = 0x3038 // RW 8: bus address of the event ring, multiple of RingAlign; only while off
	ComputeMirror    = 0x3040 // RW 8: bus address to which results at VRAM address 0 go; only while off
	ComputeMemory    = 0x3048 // RO 8: bytes of memory of the engine
	ComputeLimit     = 0x3050 // RO 8: time limit in ns
	ComputeFeatures  = 0x3058 // RO 4: FeatureArm and others; since minor 3 of InterfaceVersion
	ComputeArm       = 0x305c // RW 4: the interrupt comes once Events is beyond this number; only with ComputeArmed
)

// Features of the compute channel, bits of ComputeFeatures.
const (
	FeatureArm    = 1 << 0 // ComputeArmed and ComputeArm
	FeatureFetch  = 1 << 1 // PacketFetch
	FeatureQueues = 1 << 2 // the flags of PacketQueue
	FeatureImages = 1 << 3 // PacketImage to PacketOutput, and PacketWriteImage to PacketBufferImage; since minor 4
	FeatureGroups = 1 << 4 // PacketConstant and PacketSubGroups; since minor 5
	FeatureSVM    = 1 << 5 // PacketSVM, PacketSVMBuffer, ArgSVM and the list of PacketNDRange; since minor 6
	FeatureTimer  = 1 << 6 // PacketTimer; since minor 7

	// Features are those of this version.
	Features = FeatureArm | FeatureFetch | FeatureQueues | FeatureImages | FeatureGroups | FeatureSVM | FeatureTimer
)

// Bounds of the compute channel.
const (
	PacketVersion      = 1
	ComputeEnable      = 1 << 0 // of ComputeControl: 0 to 1 makes a context, 1 to 0 ends it
	ComputeArmed       = 1 << 1 // of ComputeControl, with ComputeEnable: interrupts come only as ComputeArm says
	ComputeNoVector    = 0xffffffff
	MinComputeRing     = 4 << 10
	MaxComputeRing     = 16 << 20
	MinComputeEvents   = 64
	MaxComputeEvents   = 64 << 10
	MaxPacket          = 64 << 10 // bytes of one packet
	PacketAlign        = 8        // the size of a packet is a multiple
	EventSize          = 64
	MaxPacketsInFlight = 4096 // packets without their event

	// EventsFailed is a bit of the count behind the event ring: the channel has failed.
	EventsFailed = 1 << 63

	// PacketFetch is a flag of a packet without a result: before the engine gets the packet,
	// the device reads Room bytes at ComputeMirror + Out of host memory to Out in VRAM.
	PacketFetch = 1 << 15
)

// ComputeKind is the content of ComputeKindReg.
type ComputeKind uint32

// Kinds of compute engines.
const (
	ComputeNone   ComputeKind = 0
	ComputeOpenCL ComputeKind = 1
)

// ComputeState is the content of ComputeStateReg.
type ComputeState uint32

// States of the compute channel.
const (
	ComputeOff      ComputeState = 0
	ComputeStarting ComputeState = 1
	ComputeReady    ComputeState = 2
	ComputeFailed   ComputeState = 3
)

// ComputeError is the content of ComputeErrorReg: the reason why the channel failed.
type ComputeError uint32

// Errors of the compute channel.
const (
	ComputeNoError   ComputeError = 0
	ComputeBadRing   ComputeError = 1 // ring, event ring or doorbell out of bounds
	ComputeBadPacket ComputeError = 2 // size of a packet
	ComputeEnded     ComputeError = 3 // the engine could not start, or ended: usually a program that faults
	ComputeTimeLimit ComputeError = 4 // packets in flight, and no event for ComputeLimit
	ComputeBadFetch  ComputeError = 5 // host memory that a packet names cannot be read
)

var computeErrors = [...]string{"no error", "bad ring", "bad packet", "the engine ended", "time limit", "bad fetch"}

// String describes the error.
func (e ComputeError) String() string {
	if int(e) < len(computeErrors) {
		return computeErrors[e]
	}
	return "reserved error"
}

// PacketHeader begins each packet of the compute channel. The engine, not the device,
// reads the rest of the packet.
//
//	bytes 0-3 Size, 4-5 Op, 6-7 Flags, 8-15 Cookie, 16-23 Out, 24-27 Room, 28-31 Queue
type PacketHeader struct {
	Size   uint32   // of the packet in bytes, header included: a multiple of PacketAlign
	Op     PacketOp // bytes 4-5
	Flags  uint16
	Cookie uint64 // the driver's number of the packet; its event has the same
	Out    uint64 // VRAM address for the result
	Room   uint32 // bytes there
	Queue  uint32 // handle of the command queue, for packets that are enqueued
}

// PacketHeaderSize is the size of a PacketHeader in bytes.
const PacketHeaderSize = 32

// Append appends the 32 bytes of h.
func (h PacketHeader) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, h.Size)
	b = le.AppendUint16(b, uint16(h.Op))
	b = le.AppendUint16(b, h.Flags)
	b = le.AppendUint64(b, h.Cookie)
	b = le.AppendUint64(b, h.Out)
	b = le.AppendUint32(b, h.Room)
	return le.AppendUint32(b, h.Queue)
}

// ParsePacketHeader reads the first 32 bytes of b. It checks the length only.
func ParsePacketHeader(b []byte) (PacketHeader, int, error) {
	if len(b) < PacketHeaderSize {
		return PacketHeader{}, 0, ErrShort
	}
	le := binary.LittleEndian
	return PacketHeader{
		Size: le.Uint32(b), Op: PacketOp(le.Uint16(b[4:])), Flags: le.Uint16(b[6:]),
		Cookie: le.Uint64(b[8:]), Out: le.Uint64(b[16:]), Room: le.Uint32(b[24:]), Queue: le.Uint32(b[28:]),
	}, PacketHeaderSize, nil
}

// Event is an entry of the event ring: a packet is complete.
//
//	bytes 0-7 Cookie, 8-11 Status, 12-15 Length, 16-23 Queued, 24-31 Submitted,
//	32-39 Started, 40-47 Ended, 48-55 Out, 56-63 reserved
type Event struct {
	Cookie uint64
	Status int32  // 0, or an error code of OpenCL
	Length uint32 // bytes of the result, which the device has written to ComputeMirror + Out
	// Times of the engine's clock in nanoseconds.
	Queued, Submitted, Started, Ended uint64
	Out                               uint64 // VRAM address of the result
}

// Append appends the 64 bytes of e.
func (e Event) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, e.Cookie)
	b = le.AppendUint32(b, uint32(e.Status))
	b = le.AppendUint32(b, e.Length)
	for _, v := range [...]uint64{e.Queued, e.Submitted, e.Started, e.Ended, e.Out, 0} {
		b = le.AppendUint64(b, v)
	}
	return b
}

// ParseEvent reads the first 64 bytes of b.
func ParseEvent(b []byte) (Event, int, error) {
	if len(b) < EventSize {
		return Event{}, 0, ErrShort
	}
	le := binary.LittleEndian
	return Event{
		Cookie: le.Uint64(b), Status: int32(le.Uint32(b[8:])), Length: le.Uint32(b[12:]),
		Queued: le.Uint64(b[16:]), Submitted: le.Uint64(b[24:]), Started: le.Uint64(b[32:]), Ended: le.Uint64(b[40:]),
		Out: le.Uint64(b[48:]),
	}, EventSize, nil
}
