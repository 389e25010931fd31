// Package cl calls an OpenCL platform through the ICD loader, libOpenCL.so.1, which
// it loads without cgo. Only the engine process uses it: a platform shares its
// process's fate.
package cl

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Status is an error code of OpenCL; it is never zero as an error.
type Status int32

// Error implements error.
func (s Status) Error() string { return fmt.Sprintf("OpenCL error %d", int32(s)) }

// Codes that the session itself returns.
const (
	DeviceNotAvailable     Status = -2
	MemAllocationFailure   Status = -4
	OutOfResources         Status = -5
	OutOfHostMemory        Status = -6
	BuildProgramFailure    Status = -11
	InvalidValue           Status = -30
	InvalidCommandQueue    Status = -36
	InvalidMemObject       Status = -38
	InvalidProgram         Status = -44
	InvalidKernel          Status = -48
	InvalidArgIndex        Status = -49
	InvalidArgValue        Status = -50
	InvalidArgSize         Status = -51
	InvalidWorkDimension   Status = -53
	InvalidOperation       Status = -59
	ImageFormatMismatch    Status = -9
	InvalidSampler         Status = -41
	InvalidImageSize       Status = -40
	InvalidImageFormat     Status = -39
	InvalidBufferSize      Status = -61
	FailedWait             Status = -14
	deviceNotFound         Status = -1
	platformNotFound       Status = -1001
	deviceTypeAll                 = 0xffffffff
	programBuildLog               = 0x1183
	programBinaryType             = 0x1184
	programBinarySizes            = 0x1165
	programBinaries               = 0x1166
	programKernelNames            = 0x1168
	kernelNumArgs                 = 0x1191
	contextPlatform               = 0x1084
	queueOutOfOrder               = 1 << 0
	queueProfiling                = 1 << 1
	bufferCreateTypeRegion        = 0x1220
)

// Handles of the platform's objects.
type (
	Platform uintptr
	Device   uintptr
	Context  uintptr
	Queue    uintptr
	Mem      uintptr
	Sampler  uintptr
	Program  uintptr
	Kernel   uintptr
	Event    uintptr
)

// function is an index of names.
type function int

const (
	getPlatformIDs function = iota
	getPlatformInfo
	getDeviceIDs
	getDeviceInfo
	getDeviceAndHostTimer
	createContext
	releaseContext
	createCommandQueue
	releaseCommandQueue
	createBuffer
	createSubBuffer
	releaseMemObject
	createImage
	createSampler
	releaseSampler
	getSupportedImageFormats
	createProgramWithSource
	createProgramWithBinary
	createProgramWithIL
	buildProgram
	compileProgram
	linkProgram
	getProgramInfo
	getProgramBuildInfo
	releaseProgram
	setProgramSpecializationConstant
	createKernel
	releaseKernel
	getKernelInfo
	getKernelArgInfo
	getKernelWorkGroupInfo
	getKernelSubGroupInfo
	setKernelArg
	svmAlloc
	svmFree
	setKernelArgSVMPointer
	setKernelExecInfo
	enqueueNDRangeKernel
	enqueueReadBuffer
	enqueueWriteBuffer
	enqueueCopyBuffer
	enqueueFillBuffer
	enqueueReadBufferRect
	enqueueWriteBufferRect
	enqueueCopyBufferRect
	enqueueMarkerWithWaitList
	enqueueBarrierWithWaitList
	enqueueReadImage
	enqueueWriteImage
	enqueueCopyImage
	enqueueFillImage
	enqueueCopyImageToBuffer
	enqueueCopyBufferToImage
	flush
	waitForEvents
	setEventCallback
	createUserEvent
	setUserEventStatus
	getEventInfo
	getEventProfilingInfo
	releaseEvent
	functions
)

var names = [functions]string{
	"clGetPlatformIDs", "clGetPlatformInfo", "clGetDeviceIDs", "clGetDeviceInfo", "clGetDeviceAndHostTimer", "clCreateContext", "clReleaseContext",
	"clCreateCommandQueue", "clReleaseCommandQueue", "clCreateBuffer", "clCreateSubBuffer", "clReleaseMemObject",
	"clCreateImage", "clCreateSampler", "clReleaseSampler", "clGetSupportedImageFormats",
	"clCreateProgramWithSource", "clCreateProgramWithBinary", "clCreateProgramWithIL", "clBuildProgram", "clCompileProgram", "clLinkProgram", "clGetProgramInfo",
	"clGetProgramBuildInfo", "clReleaseProgram", "clSetProgramSpecializationConstant", "clCreateKernel", "clReleaseKernel", "clGetKernelInfo", "clGetKernelArgInfo",
	"clGetKernelWorkGroupInfo", "clGetKernelSubGroupInfo", "clSetKernelArg", "clSVMAlloc", "clSVMFree", "clSetKernelArgSVMPointer", "clSetKernelExecInfo", "clEnqueueNDRangeKernel", "clEnqueueReadBuffer", "clEnqueueWriteBuffer",
	"clEnqueueCopyBuffer", "clEnqueueFillBuffer", "clEnqueueReadBufferRect", "clEnqueueWriteBufferRect",
	"clEnqueueCopyBufferRect", "clEnqueueMarkerWithWaitList", "clEnqueueBarrierWithWaitList", "clEnqueueReadImage", "clEnqueueWriteImage", "clEnqueueCopyImage",
	"clEnqueueFillImage", "clEnqueueCopyImageToBuffer", "clEnqueueCopyBufferToImage", "clFlush", "clWaitForEvents", "clSetEventCallback", "clCreateUserEvent", "clSetUserEventStatus", "clGetEventInfo",
	"clGetEventProfilingInfo", "clReleaseEvent",
}

// Library is the loaded ICD loader.
type Library struct{ fn [functions]uintptr }

// loader is the library by its soname, so that no development package is needed.
const loader = "libOpenCL.so.1"

// ErrNoLoader means that this machine has no OpenCL.
var ErrNoLoader = errors.New("no OpenCL on this machine: install an ICD loader (libOpenCL.so.1) and the platform of the GPU's vendor")

// optional reports whether a function came with OpenCL 2.0 or later: an older loader lacks it.
func optional(f function) bool {
	switch f {
	case getDeviceAndHostTimer, createProgramWithIL, setProgramSpecializationConstant, getKernelSubGroupInfo,
		svmAlloc, svmFree, setKernelArgSVMPointer, setKernelExecInfo:
		return true
	}
	return false
}

// Open loads the ICD loader.
func Open() (*Library, error) {
	handle, err := purego.Dlopen(loader, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLoader, err)
	}
	l := &Library{}
	for i, name := range names {
		if l.fn[i], err = purego.Dlsym(handle, name); err != nil && !optional(function(i)) {
			return nil, fmt.Errorf("%s: %w", loader, err)
		}
	}
	return l, nil
}

// call calls a function that returns a status.
func (l *Library) call(f function, args ...uintptr) error {
	r, _, _ := purego.SyscallN(l.fn[f], args...)
	if s := Status(int32(r)); s != 0 {
		return s
	}
	return nil
}

// create calls a function that returns a handle and stores its status in the last
// argument.
func (l *Library) create(f function, args ...uintptr) (uintptr, error) {
	status := new(Status)
	r, _, _ := purego.SyscallN(l.fn[f], append(args, pointer(status))...)
	runtime.KeepAlive(status)
	switch {
	case *status != 0:
		return 0, *status
	case r == 0:
		return 0, OutOfHostMemory
	}
	return r, nil
}

// escape makes the compiler put what pointer gets on the heap, where it does not
// move: the stack of a goroutine may.
var escape struct {
	on bool // never
	p  unsafe.Pointer
}

// pointer returns the address of a variable. The caller keeps the variable alive
// during the call that uses the address.
func pointer[T any](p *T) uintptr {
	if escape.on {
		escape.p = unsafe.Pointer(p)
	}
	return uintptr(unsafe.Pointer(p))
}

// data returns the address of the first byte, 0 for none.
func data[T any](s []T) uintptr {
	if len(s) == 0 {
		return 0
	}
	return pointer(unsafe.SliceData(s))
}

// maxInfo bounds what a query of the platform returns, in bytes.
const maxInfo = 256 << 20

// info makes a query whose last arguments are the name, the size and the place of
// the value.
func (l *Library) info(f function, args ...uintptr) ([]byte, error) {
	var size uintptr
	first := append(append([]uintptr{}, args...), 0, 0, pointer(&size))
	if err := l.call(f, first...); err != nil {
		return nil, err
	}
	runtime.KeepAlive(&size)
	if size == 0 || size > maxInfo {
		return nil, nil
	}
	value := make([]byte, size)
	err := l.call(f, append(append([]uintptr{}, args...), size, data(value), 0)...)
	runtime.KeepAlive(value)
	return value, err
}

// number makes a query for a number of n bytes, with one call. It returns 0 if the
// platform has none.
func (l *Library) number(f function, object uintptr, param uint32, n uintptr) uint64 {
	v := new(uint64)
	if l.call(f, object, uintptr(param), n, pointer(v), 0) != nil {
		return 0
	}
	return *v
}
