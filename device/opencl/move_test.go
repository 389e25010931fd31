package opencl_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/device/opencl"
)

// mover moves the context of a tenant to another device, as a box does.
type mover struct {
	*tenant
	next     *opencl.Device
	notice   chan struct{} // of next
	stopNext func()        // of the target
	from     uint64
	change   func(piece []byte) (skip bool) // changes a piece on its way; nil: no piece
	failed   error                          // of the target, if it may fail
	mayFail  bool
	left     int // steps until copy gives up; 0: it does not
}

// newMover makes the target, whose process is ready.
func (r *tenant) newMover(spec opencl.Spec) *mover {
	r.t.Helper()
	d, err := opencl.New(r.t.Context(), requirePlatform(r.t), spec, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	m := &mover{tenant: r, next: d, notice: make(chan struct{}, 1)}
	m.stopNext = runDevice(r.t, d, m.notice)
	d.Reset(r.host.Now, device.ConventionalReset)
	r.dev.Track(true)
	return m
}

// wait waits for news of one of the processes.
func (m *mover) wait() {
	m.t.Helper()
	select {
	case <-m.tenant.notice:
	case <-m.notice:
	case <-m.t.Context().Done():
		m.t.Fatal("the move does not go on")
	}
	m.host.Run(0)
	m.next.Transmit(m.host.Now, nil)
}

// copy copies what has changed to the target, until a round finds nothing or little is left.
func (m *mover) copy(little uint64) {
	m.t.Helper()
	buf := make([]byte, 64<<10)
	for {
		if m.left > 0 {
			if m.left--; m.left == 0 {
				return
			}
		}
		if m.failed != nil {
			return
		}
		addr, n, later := m.dev.ChangedMemory(m.from, buf)
		switch {
		case n > 0:
			if skip := m.change != nil && m.change(buf[:n]); !skip {
				for m.store(addr, buf[:n]) {
					m.wait()
				}
			}
			m.from = addr + uint64(n)
		case later:
			m.wait()
		case m.from > 0 && m.dev.Changed() >= little:
			m.from = 0
		default:
			m.from = 0
			return
		}
	}
}

// store reports whether the target is busy.
func (m *mover) store(addr uint64, p []byte) bool {
	err := m.next.StoreMemory(addr, p)
	if err != nil && !errors.Is(err, device.ErrBusy) {
		m.fail(err)
		return false
	}
	return err != nil
}

func (m *mover) fail(err error) {
	m.t.Helper()
	if !m.mayFail {
		m.t.Fatal(err)
	}
	m.failed = err
}

// stop freezes the source and returns its state.
func (m *mover) stop() []byte {
	m.t.Helper()
	m.dev.Freeze()
	for {
		if state, ok := m.dev.Snapshot(m.host.Now); ok {
			return state
		}
		m.wait()
	}
}

// finish stops the source, and starts the target in its place.
func (m *mover) finish() {
	m.t.Helper()
	state := m.stop()
	m.copy(0)
	if !m.restore(state) {
		return
	}
	old := m.dev
	old.Track(false)
	m.dev, m.host.Device = m.next, m.next
	m.tenant.notice = m.notice
	old.Reset(m.host.Now, device.ConventionalReset)
	m.next.Thaw(m.host.Now)
	m.host.Run(0)
}

// restore reports whether the target took the state over.
func (m *mover) restore(state []byte) bool {
	for m.failed == nil {
		ok, err := m.next.Restore(m.host.Now, state)
		switch {
		case err != nil:
			m.fail(err)
		case ok:
			return true
		default:
			m.wait()
		}
	}
	return false
}

// move moves the context to a new device.
func (r *tenant) move() {
	r.t.Helper()
	m := r.newMover(opencl.Spec{Memory: 256 << 20})
	m.copy(1 << 20)
	m.finish()
}

const stepSource = `
#include "step.h"
__kernel void advance(__global uint *a, __global const uint *b, uint k) {
	size_t i = get_global_id(0);
	a[i] = STEP(a[i], b[i], k);
}`

// A context moves again and again while its kernels run, and what they compute is what they
// compute in a context that stays.
func TestMove(t *testing.T) {
	const n, rounds = 300_000, 200
	run := func(moves bool) [][]byte {
		var results [][]byte
		r := newTenant(t, opencl.Spec{Memory: 256 << 20})
		r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), uint32(0)))
		r.do(0, reg.PacketBuffer, 0, 0, fields(u32(hA), uint32(0), uint64(1), uint64(4*n)))
		r.do(0, reg.PacketBuffer, 0, 0, fields(u32(hB), uint32(0), uint64(1), uint64(4*n)))
		r.build(strings.Replace(stepSource, `#include "step.h"`, "#define STEP(a, b, k) (a * 1664525u + b * k + 1013904223u)", 1))
		r.kernel("advance")
		r.do(0, reg.PacketFill, hQueue, 0, fields(u32(hA), uint32(4), uint64(0), uint64(4*n), uint64(7), noWaits))
		r.do(0, reg.PacketFill, hQueue, 0, fields(u32(hB), uint32(4), uint64(0), uint64(4*n), uint64(13), noWaits))
		events := map[uint64]bool{}
		take := func() {
			e, data, ok := r.next()
			if !ok || e.Status != 0 || events[e.Cookie] {
				t.Fatalf("%v %+v", ok, e)
			}
			events[e.Cookie] = true
			if len(data) > 0 {
				results = append(results, data)
			}
		}
		moved, m := 0, (*mover)(nil)
		for i := range rounds {
			r.post(reg.PacketNDRange, hQueue, 0, ndrange(n, bufferArg(hA), bufferArg(hB), fields(u32(reg.ArgValue), uint32(4), u32(i), uint32(0))))
			if moves && i%40 == 20 {
				m = r.newMover(opencl.Spec{Memory: 256 << 20})
				m.copy(1 << 20)
			}
			if i%40 == 35 {
				r.out = uint64(i/40) * room // the results before may be on their way
				r.post(reg.PacketRead, hQueue, 0, fields(u32(hA), uint32(0), uint64(0), uint64(1000), uint64(0), noWaits))
			}
			if m != nil && i%40 == 35 {
				m.finish() // with kernels in flight
				m = nil
				moved++
			}
			if i >= 50 && m == nil {
				take()
			}
		}
		for len(events) < rounds+rounds/40 {
			take()
		}
		data, _ := r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hA), uint32(0), uint64(0), uint64(room), uint64(0), noWaits))
		if moves && moved != 5 {
			t.Errorf("moved %d times", moved)
		}
		return append(results, data)
	}
	if want, got := run(false), run(true); !slices.EqualFunc(want, got, bytes.Equal) {
		t.Error("a context that moved computes something else")
	}
}

// Every kind of object is the same after a move, those too whose handle was released while
// another object needs it, and the memory is that of before.
func TestMoveObjects(t *testing.T) {
	r := newTenant(t, opencl.Spec{Memory: 256 << 20})
	const (
		hSub = iota + 100
		hImage
		hSampler
		hBad
		hLoose
		hInBuffer
		hCompiled
		hLinked
		hOther
	)
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), uint32(0)))
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hLoose), u32(reg.QueueOutOfOrder)))
	r.do(0, reg.PacketBuffer, 0, 0, fields(u32(hA), uint32(0), uint64(1), uint64(1<<20)))
	r.do(0, reg.PacketSubBuffer, 0, 0, fields(u32(hSub), u32(hA), uint64(1), uint64(4096), uint64(8192)))
	rgba := fields(uint32(0x10b5), uint32(0x10da)) // RGBA, unsigned bytes
	r.do(0, reg.PacketImage, 0, 0, fields(u32(hImage), uint32(0), uint64(1), rgba, uint32(image2D), uint32(0), uint64(64), uint64(32), uint64(1), uint64(0), uint64(0)))
	r.do(0, reg.PacketSampler, 0, 0, fields(u32(hSampler), uint32(0), uint32(0x1130), uint32(0x1140)))
	bad := "__kernel void f(__global int *x) { *x = undeclared_name; }"
	r.vram(textAt, []byte(bad))
	r.do(0, reg.PacketProgram, 0, 0, fields(u32(hBad), u32(reg.ProgramSource), uint64(textAt), uint64(len(bad))))
	r.do(-11, reg.PacketBuild, 0, 0, fields(u32(hBad), uint32(0), uint64(textAt), uint64(0)))
	r.build("__kernel void put(__global uchar *p) { p[get_global_id(0)] = (uchar)(get_global_id(0) * 3); }")
	r.kernel("put")
	part := "int three(void) { return 3; } __kernel void linked(__global int *p) { *p = three(); }"
	r.vram(textAt, []byte(part))
	r.do(0, reg.PacketProgram, 0, 0, fields(u32(hCompiled), u32(reg.ProgramSource), uint64(textAt), uint64(len(part))))
	r.do(0, reg.PacketCompile, 0, 0, fields(u32(hCompiled), uint32(0), uint64(textAt), uint64(0)))
	r.do(0, reg.PacketLink, 0, 0, fields(u32(hLinked), uint32(1), uint64(textAt), uint64(0), u32(hCompiled), uint32(0)))
	r.do(0, reg.PacketRelease, 0, 0, fields(u32(hProgram), uint32(0))) // the kernel needs it
	r.do(0, reg.PacketNDRange, hQueue, 0, ndrange(8192, bufferArg(hSub)))
	pixels := make([]byte, 64*32*4)
	for i := range pixels {
		pixels[i] = byte(i * 5)
	}
	r.vram(textAt, pixels)
	box := fields(uint64(0), uint64(0), uint64(0), uint64(64), uint64(32), uint64(1))
	r.do(0, reg.PacketWriteImage, hQueue, 0, fields(u32(hImage), uint32(0), box, uint64(textAt), noWaits))
	r.do(0, reg.PacketRelease, 0, 0, fields(u32(hA), uint32(0))) // the sub-buffer needs it

	m := r.newMover(opencl.Spec{Memory: 256 << 20})
	m.copy(1 << 20)
	// Objects come and go, and memory changes, while the rest moves.
	r.do(0, reg.PacketRelease, 0, 0, fields(u32(hCompiled), uint32(0)))
	r.do(0, reg.PacketBuffer, 0, 0, fields(u32(hCompiled), uint32(0), uint64(1), uint64(1<<20)))
	r.do(0, reg.PacketFill, hQueue, 0, fields(u32(hCompiled), uint32(4), uint64(0), uint64(1<<20), uint64(0x01020304), noWaits))
	r.do(0, reg.PacketFill, hQueue, 0, fields(u32(hSub), uint32(1), uint64(8000), uint64(192), uint64(9), noWaits))
	m.copy(1 << 20)
	r.do(0, reg.PacketFill, hQueue, 0, fields(u32(hSub), uint32(1), uint64(0), uint64(16), uint64(8), noWaits))
	m.finish()

	got, _ := r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hSub), uint32(0), uint64(0), uint64(8192), uint64(0), noWaits))
	for i, b := range got {
		want := byte(i * 3)
		switch {
		case i < 16:
			want = 8
		case i >= 8000:
			want = 9
		}
		if b != want {
			t.Fatalf("byte %d of the sub-buffer is %d, want %d", i, b, want)
		}
	}
	got, _ = r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hCompiled), uint32(0), uint64(0), uint64(room), uint64(0), noWaits))
	if want := bytes.Repeat([]byte{4, 3, 2, 1}, room/4); !bytes.Equal(got, want) {
		t.Error("a buffer that was made during the move is wrong")
	}
	if got, _ = r.do(0, reg.PacketReadImage, hQueue, 0, fields(u32(hImage), uint32(0), box, uint64(0), noWaits)); !bytes.Equal(got, pixels) {
		t.Error("the image is wrong")
	}
	log, _ := r.do(0, reg.PacketProgramInfo, 0, 0, fields(u32(hBad), u32(reg.ProgramLog)))
	if !strings.Contains(string(log), "undeclared_name") {
		t.Errorf("log %q", log)
	}
	r.vram(outAt, make([]byte, len(pixels))) // the texts are in VRAM still
	r.do(0, reg.PacketWriteImage, hQueue, 0, fields(u32(hImage), uint32(0), box, uint64(textAt), noWaits))
	if got, _ = r.do(0, reg.PacketReadImage, hQueue, 0, fields(u32(hImage), uint32(0), box, uint64(0), noWaits)); !bytes.Equal(got, pixels) {
		t.Error("VRAM is wrong")
	}
	r.do(0, reg.PacketMarker, hLoose, 0, noWaits)
	r.do(0, reg.PacketNDRange, hQueue, 0, ndrange(16, bufferArg(hSub)))
	name := "linked"
	r.do(0, reg.PacketRelease, 0, 0, fields(u32(hKernel), uint32(0)))
	r.do(0, reg.PacketKernel, 0, 0, fields(u32(hKernel), u32(hLinked), u32(len(name)), uint32(0), name))
	r.do(0, reg.PacketNDRange, hQueue, 0, ndrange(1, bufferArg(hSub)))
	got, _ = r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hSub), uint32(0), uint64(0), uint64(20), uint64(0), noWaits))
	if got[0] != 3 || got[4] != 12 {
		t.Errorf("after the linked kernel %v", got)
	}
	for _, h := range []int{hSub, hImage, hSampler, hBad, hLoose, hLinked, hCompiled, hKernel, hQueue} {
		r.do(0, reg.PacketRelease, 0, 0, fields(u32(h), uint32(0)))
	}
	const invalidMemObject = -38
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), uint32(0)))
	r.do(invalidMemObject, reg.PacketRead, hQueue, 0, fields(u32(hA), uint32(0), uint64(0), uint64(8), uint64(0), noWaits))
}

// A program that was compiled before a move may be compiled again after each, and linked, as one
// that has not moved.
func TestMoveCompiledProgram(t *testing.T) {
	r := newTenant(t, opencl.Spec{Memory: 256 << 20})
	const hLinked = 100
	source := "__kernel void f(__global int *p) { *p = 3; }"
	r.vram(textAt, []byte(source))
	r.do(0, reg.PacketProgram, 0, 0, fields(u32(hA), u32(reg.ProgramSource), uint64(textAt), uint64(len(source))))
	compile := func() { r.do(0, reg.PacketCompile, 0, 0, fields(u32(hA), uint32(0), uint64(textAt), uint64(0))) }
	compile()
	for range 2 { // the second time as it came
		m := r.newMover(opencl.Spec{Memory: 256 << 20})
		m.finish()
	}
	r.do(0, reg.PacketLink, 0, 0, fields(u32(hLinked), uint32(1), uint64(textAt), uint64(0), u32(hA), uint32(0)))
	compile()
	m := r.newMover(opencl.Spec{Memory: 256 << 20})
	m.finish()
	r.do(0, reg.PacketBuild, 0, 0, fields(u32(hA), uint32(0), uint64(textAt), uint64(0)))
	names, _ := r.do(0, reg.PacketProgramInfo, 0, 0, fields(u32(hA), u32(reg.ProgramKernels)))
	if string(names[8:]) != "f\x00" { // behind their size
		t.Errorf("kernels %q", names)
	}
}

// A program that was compiled when a move began is built before its end.
func TestMoveProgramBuiltMeanwhile(t *testing.T) {
	r := newTenant(t, opencl.Spec{Memory: 256 << 20})
	source := "__kernel void f(__global int *p) { *p = N; }"
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), uint32(0)))
	r.do(0, reg.PacketBuffer, 0, 0, fields(u32(hB), uint32(0), uint64(1), uint64(4<<20)))
	r.vram(textAt, []byte(source))
	r.do(0, reg.PacketProgram, 0, 0, fields(u32(hProgram), u32(reg.ProgramSource), uint64(textAt), uint64(len(source))))
	translate := func(op reg.PacketOp, options string) {
		r.vram(textAt, []byte(options))
		r.do(0, op, 0, 0, fields(u32(hProgram), uint32(0), uint64(textAt), uint64(len(options))))
	}
	translate(reg.PacketCompile, "-DN=3")
	// Without memory that has changed, the objects would all move at the end.
	r.do(0, reg.PacketFill, hQueue, 0, fields(u32(hB), uint32(4), uint64(0), uint64(4<<20), uint64(7), noWaits))
	m := r.newMover(opencl.Spec{Memory: 256 << 20})
	m.copy(1 << 20)
	translate(reg.PacketBuild, "-DN=4")
	m.finish()
	r.kernel("f")
	r.do(0, reg.PacketNDRange, hQueue, 0, ndrange(1, bufferArg(hB)))
	if got, _ := r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hB), uint32(0), uint64(0), uint64(4), uint64(0), noWaits)); got[0] != 4 {
		t.Errorf("the kernel stores %d, want 4, as it was built", got[0])
	}
}

// A program that was compiled before a move serves as a header after it, also of itself.
func TestMoveCompiledHeader(t *testing.T) {
	r := newTenant(t, opencl.Spec{Memory: 256 << 20})
	texts := []string{"#ifndef THREE\n#define THREE\nint three(void);\n#include \"h.h\"\n#endif\n", "#include \"h.h\"\nint nine(void) { return three() * three(); }\n"}
	for i, text := range texts {
		r.vram(textAt, []byte(text))
		r.do(0, reg.PacketProgram, 0, 0, fields(u32(hA+i), u32(reg.ProgramSource), uint64(textAt), uint64(len(text))))
	}
	const name = "h.h"
	compile := func(program int) {
		r.do(0, reg.PacketCompile, 0, 0, fields(u32(program), uint32(1), uint64(textAt), uint64(0), u32(hA), u32(len(name)), name))
	}
	compile(hA)
	m := r.newMover(opencl.Spec{Memory: 256 << 20})
	m.finish()
	compile(hB)
	compile(hA)
}

const image2D = 0x10f1

// A move that fails at some step leaves the context as it was.
func TestMoveFails(t *testing.T) {
	r := newTenant(t, opencl.Spec{Memory: 256 << 20})
	r.addVectors(1000)
	check := func() {
		t.Helper()
		data, _ := r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hC), uint32(0), uint64(0), uint64(4000), uint64(0), noWaits))
		if binary.LittleEndian.Uint32(data[4*999:]) != 0x453b5000 { // 2997
			t.Fatalf("%x", data[4*999:])
		}
		r.do(0, reg.PacketNDRange, hQueue, 0, ndrange(1000, bufferArg(hA), bufferArg(hB), bufferArg(hC)))
	}
	for step := range 4 {
		m := r.newMover(opencl.Spec{Memory: 256 << 20})
		switch step {
		case 1:
			m.copy(1 << 20)
		case 2:
			m.copy(1 << 20)
			m.stop()
		case 3:
			m.copy(1 << 20)
			m.stop()
			m.copy(0)
		}
		r.dev.Thaw(r.host.Now)
		r.dev.Track(false)
		check()
	}
	m := r.newMover(opencl.Spec{Memory: 256 << 20})
	m.copy(1 << 20)
	m.finish()
	check()
}

// The results of a kernel that began before the move are there after it.
func TestMoveDuringAKernel(t *testing.T) {
	r := newTenant(t, opencl.Spec{Memory: 256 << 20})
	const n = 1 << 20 // bytes
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), uint32(0)))
	r.do(0, reg.PacketBuffer, 0, 0, fields(u32(hA), uint32(0), uint64(1), uint64(n)))
	r.build("__kernel void late(__global uint *a) { uint k = get_global_id(0); for (int i = 0; i < 2000; i++) k = k * 1664525u + 1; a[get_global_id(0)] = k | 1; }")
	r.kernel("late")
	r.do(0, reg.PacketFill, hQueue, 0, fields(u32(hA), uint32(4), uint64(0), uint64(n), uint64(0), noWaits))
	r.post(reg.PacketNDRange, hQueue, 0, ndrange(n/4, bufferArg(hA)))
	m := r.newMover(opencl.Spec{Memory: 256 << 20})
	m.copy(1 << 20)
	m.finish()
	if e, _, ok := r.next(); !ok || e.Status != 0 {
		t.Fatalf("%v %+v", ok, e)
	}
	data, _ := r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hA), uint32(0), uint64(0), uint64(n), uint64(0), noWaits))
	for i := 0; i < n; i += 4 {
		if data[i]&1 == 0 {
			t.Fatalf("element %d is not there", i/4)
		}
	}
}

// A guest ends its context and begins another one while the device moves.
func TestMoveRestartedContext(t *testing.T) {
	r := newTenant(t, opencl.Spec{Memory: 256 << 20})
	r.addVectors(1000)
	m := r.newMover(opencl.Spec{Memory: 256 << 20})
	m.copy(1 << 20)
	r.write32(reg.ComputeControl, 0)
	m.copy(1 << 20)
	r.enable()
	r.addVectors(2000)
	m.copy(1 << 20)
	m.finish()
	data, _ := r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hC), uint32(0), uint64(0), uint64(8000), uint64(0), noWaits))
	if got := binary.LittleEndian.Uint32(data[4*1999:]); got != 0x45bb6800 { // 5997
		t.Errorf("%x", got)
	}
	m = r.newMover(opencl.Spec{Memory: 256 << 20})
	m.copy(1 << 20)
	r.write32(reg.ComputeControl, 0)
	m.finish() // it has no context any more
	r.move()
	r.enable()
	r.addVectors(100)
}

// A device with another platform refuses the state.
func TestMoveToAnotherKind(t *testing.T) {
	r := newTenant(t, opencl.Spec{Memory: 256 << 20})
	m := r.newMover(opencl.Spec{Memory: 128 << 20})
	m.copy(1 << 20)
	state := m.stop()
	m.copy(0)
	if _, err := m.next.Restore(m.host.Now, state); err == nil {
		t.Error("a device with less memory took the state")
	}
	r.dev.Thaw(r.host.Now)
	r.dev.Track(false)
	r.addVectors(10)
}
