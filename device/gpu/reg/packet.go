package reg

// PacketOp is the operation of a packet of the compute channel. The fields behind the
// header are little-endian words without padding; device/gpu/README.md lists them.
type PacketOp uint16

// Operations. Those from PacketWrite on, up to EndEnqueuePacket, are enqueued: a list of the
// packets that they wait for follows their fields.
const (
	PacketInfo         PacketOp = 1  // the properties of the device
	PacketRelease      PacketOp = 2  // an object
	PacketQueue        PacketOp = 3  // make a command queue
	PacketBuffer       PacketOp = 4  // make a buffer
	PacketSubBuffer    PacketOp = 5  // make a buffer inside another one
	PacketProgram      PacketOp = 6  // make a program of source, SPIR-V or a binary
	PacketBuild        PacketOp = 7  // build a program
	PacketProgramInfo  PacketOp = 8  // log, binary or names of the kernels of a program
	PacketKernel       PacketOp = 9  // make a kernel
	PacketImage        PacketOp = 10 // make an image
	PacketSampler      PacketOp = 11 // make a sampler
	PacketCompile      PacketOp = 12 // compile a program without linking it
	PacketLink         PacketOp = 13 // make a program of compiled programs
	PacketFormats      PacketOp = 14 // the formats of images
	PacketOutput       PacketOp = 15 // what kernels have printed
	PacketWrite        PacketOp = 16 // VRAM to buffer
	PacketRead         PacketOp = 17 // buffer to VRAM
	PacketCopy         PacketOp = 18 // buffer to buffer
	PacketFill         PacketOp = 19 // a pattern to a buffer
	PacketWriteRect    PacketOp = 20 // packed box in VRAM to a box of a buffer
	PacketReadRect     PacketOp = 21 // box of a buffer to a packed box in VRAM
	PacketCopyRect     PacketOp = 22 // box to box
	PacketNDRange      PacketOp = 23 // a kernel with its arguments
	PacketMarker       PacketOp = 24 // complete after the packets that it waits for
	PacketWriteImage   PacketOp = 25 // packed pixels in VRAM to a box of an image
	PacketReadImage    PacketOp = 26 // box of an image to packed pixels in VRAM
	PacketCopyImage    PacketOp = 27 // image to image
	PacketFillImage    PacketOp = 28 // a color to a box of an image
	PacketImageBuffer  PacketOp = 29 // box of an image to a buffer, packed
	PacketBufferImage  PacketOp = 30 // packed pixels of a buffer to a box of an image
	PacketConstant     PacketOp = 64 // a specialization constant of a program
	PacketSubGroups    PacketOp = 65 // a query of a kernel about sub-groups
	PacketSVM          PacketOp = 66 // make a buffer in shared virtual memory
	PacketSVMBuffer    PacketOp = 67 // make a buffer that is a part of one
	PacketTimer        PacketOp = 68 // the time of the device
	FirstEnqueuePacket          = PacketWrite
	EndEnqueuePacket            = PacketConstant
)

// Flags of PacketQueue, in the word behind the handle.
const (
	QueueWithoutTimes = 1 << 0 // events of its commands have no times
	QueueOutOfOrder   = 1 << 1 // commands wait only for those that they name
	QueueFlags        = QueueWithoutTimes | QueueOutOfOrder
)

// MarkerBarrier is a flag of PacketMarker: later commands of the queue wait for it.
const MarkerBarrier = 1 << 0

// Sources of PacketProgram.
const (
	ProgramSource = 0
	ProgramIL     = 1 // SPIR-V
	ProgramBinary = 2
)

// Selectors of PacketProgramInfo.
const (
	ProgramLog     = 0
	ProgramBytes   = 1 // the binary
	ProgramKernels = 2 // names, separated by semicolons
	ProgramType    = 3 // whether it is compiled, a library or executable (CL_PROGRAM_BINARY_TYPE)
)

// Kinds of the arguments of PacketNDRange.
const (
	ArgValue   = 0 // the bytes of the argument
	ArgBuffer  = 1 // the handle of a buffer, 0 for a null pointer
	ArgLocal   = 2 // bytes of local memory
	ArgImage   = 3 // the handle of an image
	ArgSampler = 4 // the handle of a sampler
	ArgSVM     = 5 // the handle of a buffer in shared virtual memory (4), 0 (4), offset (8)
)

// Bounds of the engine.
const (
	MaxObjects     = 64 << 10 // of one context, of all kinds
	MaxQueues      = 256      // command queues of one context
	MaxProgramText = 16 << 20 // bytes of a program or of its options
	MaxArgs        = 1024     // arguments of a kernel
	MaxPattern     = 128      // bytes of the pattern of a fill
	MaxWaits       = 1024     // packets that one packet waits for
	MaxOutput      = 8 << 20  // bytes of kernels' output until it is read
	MaxHeaders     = 1024     // programs that one packet names
	MaxConstants   = 1024     // specialization constants of a program
	MaxShared      = 1024     // buffers in shared virtual memory that a kernel uses beside its arguments
)
