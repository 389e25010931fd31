package opencl_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/devicetest"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/device/opencl"
	"github.com/dxpu-project/dxpu/pcie"
)

// program is the engine's program, built once.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(buildDir, opencl.Program)
	cmd := exec.Command("go", "build", "-o", path, "../../cmd/dxpu-opencl")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, err
})

var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "dxpu-test-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(buildDir)
	os.Exit(code)
}

// requirePlatform skips a test on a machine without an OpenCL device.
func requirePlatform(t *testing.T) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	found, err := opencl.List(t.Context(), path)
	if err != nil && !strings.Contains(err.Error(), "no OpenCL on this machine") {
		t.Fatal(err)
	}
	if len(found) == 0 {
		if _, there := os.Stat("/etc/OpenCL/vendors/pocl.icd"); err == nil && there == nil {
			t.Fatal("PoCL is installed, and the list of devices is empty")
		}
		t.Skipf("no OpenCL device (%v): scripts/install-tools.sh installs PoCL", err)
	}
	return path
}

// Places in VRAM and in host memory.
const (
	memBase  = 0x10000000
	memSize  = 16 << 20
	eventsAt = memBase
	entries  = 256
	mirrorAt = memBase + 1<<20 // a copy of the first 8 MiB of VRAM
	ringAt   = 0
	ringSize = 64 << 10
	textAt   = 0x100000 // VRAM: texts and data to the engine
	outAt    = 0x200000 // VRAM: results
	room     = 1 << 20
	limit    = time.Minute
)

// tenant is the driver of a GPU with an OpenCL engine, in a host of virtual time.
type tenant struct {
	t      *testing.T
	dev    *opencl.Device
	host   *devicetest.TestHost
	mem    []byte
	bars   [pcie.MaxBARs]uint64
	notice chan struct{}
	tail   uint32
	held   bool // the tail is written later
	seen   uint32
	cookie uint64
	out    uint64        // of results, behind outAt
	pause  time.Duration // that passes with each news of the process
}

func newTenant(t *testing.T, spec opencl.Spec) *tenant {
	t.Helper()
	path := requirePlatform(t)
	d, err := opencl.New(t.Context(), path, spec, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return tenantOf(t, d)
}

// tenantOf is the tenant of a device.
func tenantOf(t *testing.T, d *opencl.Device) *tenant {
	t.Helper()
	r := &tenant{t: t, dev: d, host: devicetest.NewHost(d), notice: make(chan struct{}, 1)}
	runDevice(t, d, r.notice)
	r.mem = r.host.AddMemory(memBase, memSize)
	for i, b := range r.host.Enumerate() {
		r.bars[i] = b.Addr
	}
	r.enable()
	return r
}

// runDevice runs a device until stop, or the end of the test. It puts its news into notice.
func runDevice(t *testing.T, d *opencl.Device, notice chan struct{}) (stop func()) {
	d.SetNotify(func() {
		select {
		case notice <- struct{}{}:
		default:
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); d.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func (r *tenant) enable() {
	r.start()
	r.until("the context", func() bool { return r.state() == reg.ComputeReady })
}

func (r *tenant) start() {
	r.write32(reg.ComputeControl, 0)
	clear(r.mem)
	r.write64(reg.ComputeRing, ringAt)
	r.write32(reg.ComputeRingSize, ringSize)
	r.write64(reg.ComputeEventBase, eventsAt)
	r.write32(reg.ComputeEventSize, entries)
	r.write64(reg.ComputeMirror, mirrorAt)
	r.write32(reg.ComputeControl, reg.ComputeEnable)
	r.tail, r.seen = 0, 0
}

func (r *tenant) write32(off uint64, v uint32) {
	r.host.Write(r.bars[0]+off, binary.LittleEndian.AppendUint32(nil, v))
}

func (r *tenant) write64(off, v uint64) {
	r.host.Write(r.bars[0]+off, binary.LittleEndian.AppendUint64(nil, v))
}

func (r *tenant) read32(off uint64) uint32 {
	r.t.Helper()
	b, err := r.host.Read(r.bars[0]+off, 4)
	if err != nil {
		r.t.Fatal(err)
	}
	return binary.LittleEndian.Uint32(b)
}

func (r *tenant) state() reg.ComputeState { return reg.ComputeState(r.read32(reg.ComputeStateReg)) }

// until waits for the engine's process, not for the clock.
func (r *tenant) until(what string, ok func() bool) {
	r.t.Helper()
	for !ok() {
		select {
		case <-r.notice:
			r.host.Run(r.pause)
		case <-r.t.Context().Done():
			r.t.Fatalf("%s does not come", what)
		}
	}
}

// vram writes to VRAM through the aperture.
func (r *tenant) vram(at uint64, b []byte) {
	for off := 0; off < len(b); off += 4096 {
		r.host.Write(r.bars[reg.BARVRAM]+at+uint64(off), b[off:min(len(b), off+4096)])
	}
}

// fields are the words of a packet: uint32, uint64 and padded bytes.
func fields(values ...any) (b []byte) {
	for _, v := range values {
		switch v := v.(type) {
		case uint32:
			b = binary.LittleEndian.AppendUint32(b, v)
		case uint64:
			b = binary.LittleEndian.AppendUint64(b, v)
		case string:
			b = append(b, v...)
			b = append(b, make([]byte, -len(v)&7)...)
		case []byte:
			b = append(b, v...)
		default:
			panic(fmt.Sprintf("%T", v))
		}
	}
	return b
}

// post puts a packet into the ring and returns its cookie.
func (r *tenant) post(op reg.PacketOp, queue uint32, flags uint16, body []byte) uint64 {
	r.cookie++
	h := reg.PacketHeader{
		Size: uint32(reg.PacketHeaderSize + len(body)), Op: op, Flags: flags, Cookie: r.cookie,
		Out: outAt + r.out, Room: room, Queue: queue,
	}
	packet := append(h.Append(nil), body...)
	from := r.tail % ringSize
	n := min(uint32(len(packet)), ringSize-from)
	r.vram(ringAt+uint64(from), packet[:n])
	r.vram(ringAt, packet[n:])
	r.tail += h.Size
	if !r.held {
		r.write32(reg.ComputeTail, r.tail)
	}
	return r.cookie
}

func (r *tenant) count() uint64 {
	return binary.LittleEndian.Uint64(r.mem[eventsAt-memBase+entries*reg.EventSize:])
}

// next waits for an event and returns it with its result. ok is false when the channel
// has failed.
func (r *tenant) next() (e reg.Event, data []byte, ok bool) {
	r.t.Helper()
	r.until("an event", func() bool { return uint32(r.count()) != r.seen || r.count()&reg.EventsFailed != 0 })
	if uint32(r.count()) == r.seen {
		return e, nil, false
	}
	e, _, err := reg.ParseEvent(r.mem[eventsAt-memBase+int(r.seen%entries)*reg.EventSize:])
	if err != nil {
		r.t.Fatal(err)
	}
	data = bytes.Clone(r.mem[mirrorAt-memBase+e.Out:][:e.Length])
	r.seen++
	r.write32(reg.ComputeSeen, r.seen)
	return e, data, true
}

// do posts a packet and waits for its event, which has the status want.
func (r *tenant) do(want int32, op reg.PacketOp, queue uint32, flags uint16, body []byte) ([]byte, reg.Event) {
	r.t.Helper()
	cookie := r.post(op, queue, flags, body)
	e, data, ok := r.next()
	if !ok {
		r.t.Fatalf("packet %d: the channel failed: %v", op, reg.ComputeError(r.read32(reg.ComputeErrorReg)))
	}
	if e.Cookie != cookie || e.Status != want {
		r.t.Fatalf("packet %d: event %+v, want cookie %d, status %d", op, e, cookie, want)
	}
	return data, e
}

func u32(v int) uint32 { return uint32(v) }

// Handles of the tests' objects.
const (
	hQueue = iota + 1
	hA
	hB
	hC
	hProgram
	hKernel
)

var noWaits = fields(uint32(0), uint32(0))

func (r *tenant) build(source string) {
	r.t.Helper()
	r.vram(textAt, []byte(source))
	r.do(0, reg.PacketProgram, 0, 0, fields(u32(hProgram), u32(reg.ProgramSource), uint64(textAt), uint64(len(source))))
	r.do(0, reg.PacketBuild, 0, 0, fields(u32(hProgram), uint32(0), uint64(textAt), uint64(0)))
}

func (r *tenant) kernel(name string) []byte {
	r.t.Helper()
	info, _ := r.do(0, reg.PacketKernel, 0, 0, fields(u32(hKernel), u32(hProgram), u32(len(name)), uint32(0), name))
	return info
}

func bufferArg(handle int) []byte {
	return fields(u32(reg.ArgBuffer), uint32(4), u32(handle), uint32(0))
}

// ndrange is the body of a one-dimensional PacketNDRange.
func ndrange(n uint64, args ...[]byte) []byte {
	b := fields(u32(hKernel), uint32(1), u32(len(args)), uint32(0), make([]byte, 24), n, make([]byte, 16), make([]byte, 24))
	return append(append(b, bytes.Join(args, nil)...), noWaits...)
}

const addSource = `__kernel void add(__global const float *a, __global const float *b, __global float *c) {
	size_t i = get_global_id(0);
	c[i] = a[i] + b[i];
}`

// addVectors runs the whole life of a program, in one chain without a wait.
func (r *tenant) addVectors(n int) {
	r.t.Helper()
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), uint32(0)))
	size := uint64(4 * n)
	for _, h := range []int{hA, hB, hC} {
		r.do(0, reg.PacketBuffer, 0, 0, fields(u32(h), uint32(0), uint64(1), size))
	}
	r.build(addSource)
	r.kernel("add")
	var a, b []byte
	for i := range n {
		a = binary.LittleEndian.AppendUint32(a, math.Float32bits(float32(i)))
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(2*i)))
	}
	r.vram(textAt, a)
	r.vram(textAt+size, b)
	r.post(reg.PacketWrite, hQueue, 0, fields(u32(hA), uint32(0), uint64(0), size, uint64(textAt), noWaits))
	r.post(reg.PacketWrite, hQueue, 0, fields(u32(hB), uint32(0), uint64(0), size, textAt+size, noWaits))
	r.post(reg.PacketNDRange, hQueue, 0, ndrange(uint64(n), bufferArg(hA), bufferArg(hB), bufferArg(hC)))
	last := r.post(reg.PacketRead, hQueue, 0, fields(u32(hC), uint32(0), uint64(0), size, uint64(0), noWaits))
	for {
		e, data, ok := r.next()
		if !ok || e.Status != 0 {
			r.t.Fatalf("%v %+v", ok, e)
		}
		if e.Started > e.Ended || e.Queued > e.Submitted {
			r.t.Errorf("times %+v", e)
		}
		if e.Cookie != last {
			continue
		}
		for i := range n {
			if v := math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])); v != float32(3*i) {
				r.t.Fatalf("element %d is %v", i, v)
			}
		}
		return
	}
}

func TestAddVectors(t *testing.T) {
	r := newTenant(t, opencl.Spec{})
	r.addVectors(10_000)
	if i := r.dev.Info(); i.Memory == 0 || i.Model == "" {
		t.Errorf("%+v", i)
	}
}

func TestDevicePropertiesAndKernelArguments(t *testing.T) {
	r := newTenant(t, opencl.Spec{})
	info, _ := r.do(0, reg.PacketInfo, 0, 0, nil)
	if name := property(t, info, 0x102b, 0xffffffff); !strings.HasPrefix(string(name), r.dev.Info().Model) {
		t.Errorf("name %q", name)
	}
	r.build(addSource)
	k := r.kernel("add")
	if n := binary.LittleEndian.Uint64(k); n != 3 {
		t.Fatalf("%d arguments", n)
	}
	if name := property(t, k[8:], 0x119a, 2); string(name) != "c\x00" {
		t.Errorf("argument 2 is %q", name)
	}
}

// property finds a property in a result.
func property(t *testing.T, b []byte, param, index uint32) []byte {
	t.Helper()
	for len(b) >= 16 {
		n := binary.LittleEndian.Uint64(b[8:])
		value := b[16:][:n]
		if binary.LittleEndian.Uint32(b) == param && binary.LittleEndian.Uint32(b[4:]) == index {
			return value
		}
		b = b[16+(n+7)&^7:]
	}
	t.Fatalf("no property %#x of %d", param, index)
	return nil
}

func TestBuildFailureHasLogAndBinaryIsLoaded(t *testing.T) {
	r := newTenant(t, opencl.Spec{})
	bad := "__kernel void f(__global int *x) { *x = undeclared_name; }"
	r.vram(textAt, []byte(bad))
	r.do(0, reg.PacketProgram, 0, 0, fields(u32(hA), u32(reg.ProgramSource), uint64(textAt), uint64(len(bad))))
	r.do(-11, reg.PacketBuild, 0, 0, fields(u32(hA), uint32(0), uint64(textAt), uint64(0)))
	log, _ := r.do(0, reg.PacketProgramInfo, 0, 0, fields(u32(hA), u32(reg.ProgramLog)))
	if !strings.Contains(string(log), "undeclared_name") {
		t.Errorf("log %q", log)
	}
	r.build(addSource)
	names, _ := r.do(0, reg.PacketProgramInfo, 0, 0, fields(u32(hProgram), u32(reg.ProgramKernels)))
	if string(names[8:]) != "add\x00" {
		t.Errorf("kernels %q", names)
	}
	binary, _ := r.do(0, reg.PacketProgramInfo, 0, 0, fields(u32(hProgram), u32(reg.ProgramBytes)))
	r.vram(textAt, binary[8:])
	r.do(0, reg.PacketRelease, 0, 0, fields(u32(hProgram), uint32(0)))
	r.do(0, reg.PacketProgram, 0, 0, fields(u32(hProgram), u32(reg.ProgramBinary), uint64(textAt), uint64(len(binary)-8)))
	r.do(0, reg.PacketBuild, 0, 0, fields(u32(hProgram), uint32(0), uint64(textAt), uint64(0)))
	r.kernel("add")
}

// A command of an out-of-order queue that ends has its event, though a hundred before it wait.
func TestEventsOfAnOutOfOrderQueueAreNotLate(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("the platform runs one command at a time on one processor")
	}
	r := newTenant(t, opencl.Spec{})
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), u32(reg.QueueOutOfOrder)))
	for _, h := range []int{hA, hB} {
		r.do(0, reg.PacketBuffer, 0, 0, fields(u32(h), uint32(0), uint64(1), uint64(64)))
	}
	four := make([]byte, 8) // a pattern of four bytes, padded
	fill := func(h int) []byte {
		return fields(u32(h), uint32(4), uint64(0), uint64(64), four, noWaits)
	}
	r.do(0, reg.PacketFill, hQueue, 0, fill(hA))
	r.build("__kernel void f(__global volatile int *a) { while (a[0] == 0) ; }")
	r.kernel("f")
	r.do(0, reg.PacketMarker, hQueue, reg.MarkerBarrier, noWaits)
	first := r.post(reg.PacketNDRange, hQueue, 0, ndrange(1, bufferArg(hA)))
	const waiting = 100
	for range waiting {
		r.post(reg.PacketMarker, hQueue, 0, fields(uint32(1), uint32(0), first))
	}
	r.do(0, reg.PacketFill, hQueue, 0, fill(hB)) // its event is the next one
	four[0] = 1
	last := r.post(reg.PacketFill, hQueue, 0, fill(hA))
	got := map[uint64]bool{}
	for len(got) < waiting+2 {
		e, _, ok := r.next()
		if !ok || e.Status != 0 {
			t.Fatalf("%v %+v", ok, e)
		}
		got[e.Cookie] = true
	}
	if !got[first] || !got[last] {
		t.Errorf("events %v", got)
	}
	r.do(0, reg.PacketRelease, 0, 0, fields(u32(hQueue), uint32(0)))
}
