package cl

import (
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// NewContext makes a context with one device.
func (l *Library) NewContext(f Found) (Context, error) {
	properties := []uintptr{contextPlatform, uintptr(f.platform), 0}
	devices := []Device{f.device}
	h, err := l.create(createContext, data(properties), 1, data(devices), 0, 0)
	runtime.KeepAlive(properties)
	runtime.KeepAlive(devices)
	return Context(h), err
}

// NewQueue makes a command queue: times tells whether it takes times, and ordered whether
// commands run in their order.
func (l *Library) NewQueue(c Context, f Found, times, ordered bool) (Queue, error) {
	var properties uintptr
	if times {
		properties |= queueProfiling
	}
	if !ordered {
		properties |= queueOutOfOrder
	}
	h, err := l.create(createCommandQueue, uintptr(c), uintptr(f.device), properties)
	return Queue(h), err
}

// NewBuffer makes a buffer. flags are those of OpenCL, without those for host pointers.
func (l *Library) NewBuffer(c Context, flags uint64, size uint64) (Mem, error) {
	h, err := l.create(createBuffer, uintptr(c), uintptr(flags), uintptr(size), 0)
	return Mem(h), err
}

// NewSubBuffer makes a buffer inside another one.
func (l *Library) NewSubBuffer(m Mem, flags, origin, size uint64) (Mem, error) {
	region := []uintptr{uintptr(origin), uintptr(size)}
	h, err := l.create(createSubBuffer, uintptr(m), uintptr(flags), bufferCreateTypeRegion, data(region))
	runtime.KeepAlive(region)
	return Mem(h), err
}

// NewProgram makes a program of its source text.
func (l *Library) NewProgram(c Context, source []byte) (Program, error) {
	strings, lengths := []uintptr{data(source)}, []uintptr{uintptr(len(source))}
	h, err := l.create(createProgramWithSource, uintptr(c), 1, data(strings), data(lengths))
	runtime.KeepAlive(source)
	runtime.KeepAlive(strings)
	runtime.KeepAlive(lengths)
	return Program(h), err
}

// NewProgramIL makes a program of SPIR-V.
func (l *Library) NewProgramIL(c Context, il []byte) (Program, error) {
	if l.fn[createProgramWithIL] == 0 {
		return 0, InvalidOperation
	}
	h, err := l.create(createProgramWithIL, uintptr(c), data(il), uintptr(len(il)))
	runtime.KeepAlive(il)
	return Program(h), err
}

// NewProgramBinary makes a program of a binary of the same platform.
func (l *Library) NewProgramBinary(c Context, f Found, binary []byte) (Program, error) {
	devices, sizes, binaries := []Device{f.device}, []uintptr{uintptr(len(binary))}, []uintptr{data(binary)}
	var loaded Status
	h, err := l.create(createProgramWithBinary, uintptr(c), 1, data(devices), data(sizes), data(binaries), pointer(&loaded))
	runtime.KeepAlive(devices)
	runtime.KeepAlive(sizes)
	runtime.KeepAlive(binaries)
	runtime.KeepAlive(binary)
	return Program(h), err
}

// Build compiles and links a program. It takes as long as the compiler does.
func (l *Library) Build(p Program, f Found, options string) error {
	devices, text := []Device{f.device}, append([]byte(options), 0)
	err := l.call(buildProgram, uintptr(p), 1, data(devices), data(text), 0, 0)
	runtime.KeepAlive(devices)
	runtime.KeepAlive(text)
	return err
}

// Compile compiles a program without linking it. names are those by which its source
// includes the headers.
func (l *Library) Compile(p Program, f Found, options string, headers []Program, names []string) error {
	devices, text := []Device{f.device}, append([]byte(options), 0)
	texts, places := make([][]byte, len(names)), make([]uintptr, len(names))
	for i, name := range names {
		texts[i] = append([]byte(name), 0)
		places[i] = data(texts[i])
	}
	err := l.call(compileProgram, uintptr(p), 1, data(devices), data(text), uintptr(len(headers)), data(headers), data(places), 0, 0)
	runtime.KeepAlive(devices)
	runtime.KeepAlive(text)
	runtime.KeepAlive(headers)
	runtime.KeepAlive(texts)
	runtime.KeepAlive(places)
	return err
}

// Link makes a program of compiled programs. There may be a program beside an error: it
// has the linker's messages.
func (l *Library) Link(c Context, f Found, options string, programs []Program) (Program, error) {
	devices, text := []Device{f.device}, append([]byte(options), 0)
	status := new(Status)
	r, _, _ := purego.SyscallN(l.fn[linkProgram], uintptr(c), 1, data(devices), data(text), uintptr(len(programs)), data(programs), 0, 0, pointer(status))
	runtime.KeepAlive(devices)
	runtime.KeepAlive(text)
	runtime.KeepAlive(programs)
	switch {
	case *status != 0:
		return Program(r), *status
	case r == 0:
		return 0, OutOfHostMemory
	}
	return Program(r), nil
}

// BinaryType returns whether a program is compiled, a library or executable.
func (l *Library) BinaryType(p Program, f Found) []byte {
	v, _ := l.info(getProgramBuildInfo, uintptr(p), uintptr(f.device), programBinaryType)
	return v
}

// BuildLog returns the compiler's messages.
func (l *Library) BuildLog(p Program, f Found) []byte {
	v, _ := l.info(getProgramBuildInfo, uintptr(p), uintptr(f.device), programBuildLog)
	return v
}

// KernelNames returns the names of a built program, separated by semicolons.
func (l *Library) KernelNames(p Program) ([]byte, error) {
	return l.info(getProgramInfo, uintptr(p), programKernelNames)
}

// Binary returns the binary of a built program, at most limit bytes.
func (l *Library) Binary(p Program, limit uint64) ([]byte, error) {
	sizes, err := l.info(getProgramInfo, uintptr(p), programBinarySizes)
	if err != nil {
		return nil, err
	}
	size := word(sizes)
	if size == 0 || size > limit {
		return nil, OutOfResources
	}
	binary := make([]byte, size)
	list := []uintptr{data(binary)}
	err = l.call(getProgramInfo, uintptr(p), programBinaries, unsafe.Sizeof(list[0]), data(list), 0)
	runtime.KeepAlive(list)
	runtime.KeepAlive(binary)
	return binary, err
}

// NewKernel makes a kernel of a built program.
func (l *Library) NewKernel(p Program, name string) (Kernel, error) {
	text := append([]byte(name), 0)
	h, err := l.create(createKernel, uintptr(p), data(text))
	runtime.KeepAlive(text)
	return Kernel(h), err
}

// NumArgs returns the number of arguments of a kernel.
func (l *Library) NumArgs(k Kernel) (int, error) {
	v, err := l.info(getKernelInfo, uintptr(k), kernelNumArgs)
	return int(word(v)), err
}

// Parameters of kernels, of their arguments and of their work-groups.
const (
	kernelAttributes  = 0x1195
	kernelArgFirst    = 0x1196 // address, access, type name, type qualifier, name
	kernelArgEnd      = 0x119b
	kernelGroupFirst  = 0x11b0 // size, compile size, local memory, preferred multiple, private memory
	kernelGroupEnd    = 0x11b5
	ArgParamsPerEntry = kernelArgEnd - kernelArgFirst

	argAddress   = 0x1196
	argAccess    = 0x1197
	argTypeName  = 0x1198
	argQualifier = 0x1199

	addressConstant = 0x119d
	accessReadOnly  = 0x11a0
	accessNone      = 0x11a3 // of all but images and pipes
	qualifierConst  = 1 << 0
)

// ArgClass says what a platform takes for an argument of a kernel.
type ArgClass int

// Classes of arguments.
const (
	ArgUnknown ArgClass = iota // the platform keeps no description
	ArgPlain                   // bytes
	ArgMemory                  // a handle of a memory object
	ArgLocal                   // a size of local memory
	ArgImage                   // a handle of an image
	ArgSampler                 // a handle of a sampler
	ArgHandle                  // a handle of another kind
)

// addressSpaces are the values of argAddress.
var addressSpaces = map[uint64]ArgClass{0x119b: ArgMemory, 0x119c: ArgLocal, 0x119d: ArgMemory, 0x119e: ArgPlain}

// handleTypes are types of the kernel language whose arguments are handles, though
// their address space is private.
var handleTypes = map[string]ArgClass{
	"sampler_t": ArgSampler, "queue_t": ArgHandle, "clk_event_t": ArgHandle, "event_t": ArgHandle, "reserve_id_t": ArgHandle,
}

// ClassOf returns the class of an argument with these properties. An image has an access
// qualifier, whatever its type is called; a sampler has only its name.
func ClassOf(properties []Property) ArgClass {
	class := ArgUnknown
	for _, p := range properties { // in the order of their numbers
		switch p.Param {
		case argAddress:
			class = addressSpaces[word(p.Value)]
		case argAccess:
			if word(p.Value) != accessNone {
				return ArgImage
			}
		case argTypeName:
			if handle, ok := handleTypes[cString(p.Value)]; ok {
				return handle
			}
		}
	}
	return class
}

// OnlyReads reports whether a kernel does not write to the memory of an argument with these
// properties: constant memory, a pointer to const, an image that is read only.
func OnlyReads(properties []Property) bool {
	for _, p := range properties {
		switch v := word(p.Value); {
		case p.Param == argAddress && v == addressConstant,
			p.Param == argAccess && v == accessReadOnly,
			p.Param == argQualifier && v&qualifierConst != 0:
			return true
		}
	}
	return false
}

// KernelProperties returns the attributes and the work-group properties.
func (l *Library) KernelProperties(k Kernel, f Found) []Property {
	var out []Property
	if v, err := l.info(getKernelInfo, uintptr(k), kernelAttributes); err == nil {
		out = append(out, Property{kernelAttributes, v})
	}
	for p := uint32(kernelGroupFirst); p < kernelGroupEnd; p++ {
		if v, err := l.info(getKernelWorkGroupInfo, uintptr(k), uintptr(f.device), uintptr(p)); err == nil {
			out = append(out, Property{p, v})
		}
	}
	return out
}

// ArgProperties returns the properties of an argument. There are none if the platform
// does not keep them.
func (l *Library) ArgProperties(k Kernel, i int) []Property {
	var out []Property
	for p := uint32(kernelArgFirst); p < kernelArgEnd; p++ {
		if v, err := l.info(getKernelArgInfo, uintptr(k), uintptr(i), uintptr(p)); err == nil {
			out = append(out, Property{p, v})
		}
	}
	return out
}

// SetArg sets an argument. A nil value is local memory of n bytes.
func (l *Library) SetArg(k Kernel, i int, n int, value []byte) error {
	err := l.call(setKernelArg, uintptr(k), uintptr(i), uintptr(n), data(value))
	runtime.KeepAlive(value)
	return err
}

// Release releases an object.
func (l *Library) Release(object any) error {
	switch o := object.(type) {
	case Context:
		return l.call(releaseContext, uintptr(o))
	case Queue:
		return l.call(releaseCommandQueue, uintptr(o))
	case Mem:
		return l.call(releaseMemObject, uintptr(o))
	case Sampler:
		return l.call(releaseSampler, uintptr(o))
	case Program:
		return l.call(releaseProgram, uintptr(o))
	case Kernel:
		return l.call(releaseKernel, uintptr(o))
	case Event:
		return l.call(releaseEvent, uintptr(o))
	}
	return InvalidValue
}
