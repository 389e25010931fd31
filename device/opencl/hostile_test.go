package opencl_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/device/opencl"
)

// A packet that is wrong has an event with an error, and the context goes on.
func TestWrongPackets(t *testing.T) {
	r := newTenant(t, opencl.Spec{Memory: 64 << 20})
	r.addVectors(16)
	all := ^uint64(0)
	for i, p := range []struct {
		op    reg.PacketOp
		queue uint32
		flags uint16
		body  []byte
	}{
		{op: 0},
		{op: 0xffff},
		{op: reg.PacketRelease, body: fields(uint32(999), uint32(0))},
		{op: reg.PacketRelease},
		{op: reg.PacketQueue, body: fields(uint32(0), uint32(0))},
		{op: reg.PacketQueue, body: fields(u32(hA), uint32(0))},
		{op: reg.PacketBuffer, body: fields(uint32(100), uint32(0), uint64(1), uint64(0))},
		{op: reg.PacketBuffer, body: fields(uint32(100), uint32(0), uint64(1), all)},
		{op: reg.PacketBuffer, body: fields(uint32(100), uint32(0), uint64(1), uint64(64<<20))},
		{op: reg.PacketBuffer, body: fields(uint32(100), uint32(0), all, uint64(64))},
		{op: reg.PacketSubBuffer, body: fields(uint32(100), u32(hA), uint64(1), uint64(32), uint64(64))},
		{op: reg.PacketSubBuffer, body: fields(uint32(100), u32(hA), uint64(1), all, uint64(64))},
		{op: reg.PacketSubBuffer, body: fields(uint32(100), u32(hQueue), uint64(1), uint64(0), uint64(64))},
		{op: reg.PacketProgram, body: fields(uint32(100), uint32(0), uint64(textAt), all)},
		{op: reg.PacketProgram, body: fields(uint32(100), uint32(0), all, uint64(8))},
		{op: reg.PacketProgram, body: fields(uint32(100), uint32(0), uint64(textAt), uint64(0))},
		{op: reg.PacketProgram, body: fields(uint32(100), uint32(9), uint64(textAt), uint64(8))},
		{op: reg.PacketProgram, body: fields(uint32(100), u32(reg.ProgramIL), uint64(textAt), uint64(8))},
		{op: reg.PacketProgram, body: fields(uint32(100), u32(reg.ProgramBinary), uint64(textAt), uint64(8))},
		{op: reg.PacketBuild, body: fields(uint32(999), uint32(0), uint64(0), uint64(0))},
		{op: reg.PacketBuild, body: fields(u32(hProgram), uint32(0), all, uint64(1))},
		{op: reg.PacketProgramInfo, body: fields(u32(hProgram), uint32(77))},
		{op: reg.PacketKernel, body: fields(uint32(100), u32(hProgram), u32(7), uint32(0), "nothing")},
		{op: reg.PacketKernel, body: fields(uint32(100), u32(hProgram), ^uint32(0), uint32(0), "add")},
		{op: reg.PacketWrite, queue: 999, body: fields(u32(hA), uint32(0), uint64(0), uint64(8), uint64(0), noWaits)},
		{op: reg.PacketWrite, queue: hA, body: fields(u32(hA), uint32(0), uint64(0), uint64(8), uint64(0), noWaits)},
		{op: reg.PacketWrite, queue: hQueue, body: fields(u32(hA), uint32(0), uint64(60), uint64(8), uint64(0), noWaits)},
		{op: reg.PacketWrite, queue: hQueue, body: fields(u32(hA), uint32(0), all-3, uint64(8), uint64(0), noWaits)},
		{op: reg.PacketWrite, queue: hQueue, body: fields(u32(hA), uint32(0), uint64(0), uint64(8), all-3, noWaits)},
		{op: reg.PacketRead, queue: hQueue, body: fields(u32(hA), uint32(0), uint64(0), uint64(room+8), uint64(0), noWaits)},
		{op: reg.PacketRead, queue: hQueue, body: fields(u32(hA), uint32(0), uint64(0), uint64(8), uint64(0), uint32(99), uint32(0))},
		{op: reg.PacketRead, queue: hQueue, body: fields(u32(hA), uint32(0), uint64(0), uint64(8), uint64(0), ^uint32(0), uint32(0))},
		{op: reg.PacketCopy, queue: hQueue, body: fields(u32(hA), u32(hB), uint64(0), uint64(61), uint64(8), noWaits)},
		{op: reg.PacketFill, queue: hQueue, body: fields(u32(hA), uint32(3), uint64(0), uint64(9), "abc", noWaits)},
		{op: reg.PacketFill, queue: hQueue, body: fields(u32(hA), uint32(256), uint64(0), uint64(9), noWaits)},
		{op: reg.PacketReadRect, queue: hQueue, body: fields(u32(hA), uint32(0), uint64(0), uint64(1), all, uint64(8), all, uint64(1), uint64(1), uint64(1), uint64(0), noWaits)},
		{op: reg.PacketWriteRect, queue: hQueue, body: fields(u32(hA), uint32(0), uint64(0), uint64(0), uint64(0), uint64(8), uint64(0), uint64(8), uint64(9), uint64(1), uint64(0), noWaits)},
		{op: reg.PacketNDRange, queue: hQueue, body: ndrange(16, bufferArg(hA), bufferArg(hB))},
		{op: reg.PacketNDRange, queue: hQueue, body: ndrange(16, bufferArg(hA), bufferArg(hB), bufferArg(hQueue))},
		{op: reg.PacketNDRange, queue: hQueue, body: ndrange(16, bufferArg(hA), bufferArg(hB), fields(u32(7), uint32(0)))},
		{op: reg.PacketNDRange, queue: hQueue, body: ndrange(16, bufferArg(hA), bufferArg(hB), fields(u32(reg.ArgLocal), ^uint32(0)))},
		// The platform would follow it as the pointer of a buffer.
		{op: reg.PacketNDRange, queue: hQueue, body: ndrange(16, bufferArg(hA), bufferArg(hB), fields(u32(reg.ArgValue), uint32(8), uint64(0x4141414141414140)))},
		{op: reg.PacketNDRange, queue: hQueue, body: fields(u32(hKernel), uint32(4), uint32(0), uint32(0))},
		{op: reg.PacketMarker, queue: hQueue},
		{op: reg.PacketImage, body: imageFields(100, 0, 0x10b5, 0x10da, 0x10f1, 0, 4, 0)},
		{op: reg.PacketImage, body: imageFields(100, 0, 0x10b5, 0x10da, 0x10f1, 1<<40, 1<<40, 0)},
		{op: reg.PacketImage, body: imageFields(100, 0, 0x10b5, 0x10da, 0x10f1, 8<<10, 8<<10, 0)},
		{op: reg.PacketImage, body: imageFields(100, 0, 7, 0x10da, 0x10f1, 4, 4, 0)},
		{op: reg.PacketImage, body: imageFields(100, 0, 0x10b5, 7, 0x10f1, 4, 4, 0)},
		{op: reg.PacketImage, body: imageFields(100, 0, 0x10b5, 0x10da, 7, 4, 4, 0)},
		{op: reg.PacketImage, body: imageFields(100, 0, 0x10b5, 0x10da, 0x10f1, 4, 4, 64)},
		{op: reg.PacketImage, body: imageFields(100, hA, 0x10b5, 0x10da, 0x10f6, 17, 0, 0)},
		{op: reg.PacketImage, body: imageFields(100, hA, 0x10b5, 0x10da, 0x10f1, 4, 2, all)},
		{op: reg.PacketImage, body: imageFields(100, hQueue, 0x10b5, 0x10da, 0x10f6, 4, 0, 0)},
		{op: reg.PacketSampler, body: fields(uint32(100), uint32(1), uint32(7), uint32(7))},
		{op: reg.PacketCompile, body: fields(u32(hProgram), ^uint32(0), uint64(textAt), uint64(0))},
		{op: reg.PacketCompile, body: fields(u32(hProgram), uint32(1), uint64(textAt), uint64(0), u32(hA), uint32(1), "a")},
		{op: reg.PacketLink, body: fields(uint32(100), uint32(1), uint64(textAt), uint64(0), u32(hQueue), uint32(0))},
		{op: reg.PacketLink, body: fields(uint32(100), uint32(3), uint64(textAt), uint64(0), u32(hProgram), u32(hProgram))},
		{op: reg.PacketLink, body: fields(u32(hA), uint32(1), uint64(textAt), uint64(0), u32(hProgram), uint32(0))},
		{op: reg.PacketFormats},
		{op: reg.PacketReadImage, queue: hQueue, body: fields(u32(hA), uint32(0), make([]byte, 24), uint64(1), uint64(1), uint64(1), uint64(0), noWaits)},
		{op: reg.PacketFillImage, queue: hQueue, body: fields(u32(hA), uint32(0), make([]byte, 64), noWaits)},
		{op: reg.PacketNDRange, queue: hQueue, body: ndrange(16, bufferArg(hA), bufferArg(hB), fields(u32(reg.ArgImage), uint32(4), u32(hA), uint32(0)))},
		{op: reg.PacketNDRange, queue: hQueue, body: ndrange(16, bufferArg(hA), bufferArg(hB), fields(u32(reg.ArgSampler), uint32(4), u32(hA), uint32(0)))},
		{op: reg.PacketConstant, body: fields(u32(hProgram), uint32(7), uint32(4), uint32(0), uint64(1))}, // of a source
		{op: reg.PacketConstant, body: fields(u32(hA), uint32(7), uint32(4), uint32(0), uint64(1))},
		{op: reg.PacketConstant, body: fields(u32(hProgram), uint32(7), ^uint32(0), uint32(0))},
		{op: reg.PacketConstant},
		{op: reg.PacketSubGroups, body: fields(u32(hQueue), uint32(0x2034), uint32(8), uint32(0), uint64(8))},
		{op: reg.PacketSubGroups, body: fields(u32(hKernel), uint32(0x2034), uint32(8), uint32(0), uint64(0))},
		{op: reg.PacketSubGroups, body: fields(u32(hKernel), uint32(0x2034), uint32(24), uint32(0), all, all, all)},
		{op: reg.PacketSubGroups, body: fields(u32(hKernel), uint32(0x2034), ^uint32(0), uint32(0))},
		{op: reg.PacketSubGroups, body: fields(u32(hKernel), uint32(0x11b8), uint32(0), uint32(0))},
		{op: reg.PacketSubGroups, body: fields(u32(hKernel), uint32(7), uint32(0), uint32(0))},
		{op: reg.PacketSubGroups},
		{op: reg.PacketSVM, body: fields(u32(hA), uint32(0), uint64(1), uint64(64))},
		{op: reg.PacketSVM, body: fields(uint32(100), uint32(0), uint64(1), uint64(0))},
		{op: reg.PacketSVM, body: fields(uint32(100), uint32(0), uint64(1), all)},
		{op: reg.PacketSVM, body: fields(uint32(100), uint32(0), uint64(1), uint64(64<<20))},
		{op: reg.PacketSVM},
		{op: reg.PacketSVMBuffer, body: fields(uint32(100), u32(hA), uint64(1), uint64(0), uint64(64))},
		{op: reg.PacketSVMBuffer, body: fields(uint32(100), u32(hQueue), uint64(1), uint64(0), uint64(64))},
		{op: reg.PacketSVMBuffer, body: fields(uint32(100), u32(hA), uint64(1), all, uint64(64))},
		{op: reg.PacketSVMBuffer},
		{op: reg.PacketNDRange, queue: hQueue, body: ndrange(16, bufferArg(hA), bufferArg(hB), sharedArg(hA, 0))},
		{op: reg.PacketNDRange, queue: hQueue, body: ndrange(16, bufferArg(hA), bufferArg(hB), sharedArg(999, 0))},
		{op: reg.PacketNDRange, queue: hQueue, body: ndrange(16, bufferArg(hA), bufferArg(hB), fields(u32(reg.ArgSVM), uint32(8), u32(hA), uint32(0)))},
		{op: reg.PacketTimer, queue: hQueue, body: fields(all)}, // the platform may have none
		{op: reg.PacketTimer + 1, queue: hQueue, body: fields(noWaits)},
	} {
		cookie := r.post(p.op, p.queue, p.flags, p.body)
		e, _, ok := r.next()
		if !ok {
			t.Fatalf("packet %d ended the context: %v", i, reg.ComputeError(r.read32(reg.ComputeErrorReg)))
		}
		if e.Cookie != cookie || e.Status >= 0 && i != 9 { // flags of host memory are left out
			t.Errorf("packet %d: %+v", i, e)
		}
	}
	r.do(0, reg.PacketMarker, hQueue, 0, noWaits)
}

// imageFields are those of PacketImage.
func imageFields(handle, in, order, kind, shape int, width, height, row uint64) []byte {
	return fields(u32(handle), u32(in), uint64(1), u32(order), u32(kind), u32(shape), uint32(0), width, height, make([]byte, 16), row)
}

// A box that is not in its image is refused, and the image goes on.
func TestBoxesOutsideAnImage(t *testing.T) {
	r := newTenant(t, opencl.Spec{Memory: 64 << 20})
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), uint32(0)))
	r.do(0, reg.PacketImage, 0, 0, imageFields(hA, 0, 0x10b5, 0x10da, 0x10f1, 8, 4, 0))
	r.do(0, reg.PacketBuffer, 0, 0, fields(u32(hB), uint32(0), uint64(1), uint64(64)))
	box := func(x, y, width, height uint64) []byte {
		return fields(x, y, uint64(0), width, height, uint64(1))
	}
	color := make([]byte, 16)
	color[0] = 9
	r.do(0, reg.PacketFillImage, hQueue, 0, fields(u32(hA), uint32(0), box(0, 0, 8, 4), color, noWaits))
	for i, b := range [][]byte{box(8, 0, 1, 1), box(0, 4, 1, 1), box(1, 0, 8, 1), box(0, 0, 0, 1), box(^uint64(0), 0, 2, 1), box(0, 0, 1, ^uint64(0))} {
		r.do(-30, reg.PacketReadImage, hQueue, 0, fields(u32(hA), uint32(0), b, uint64(0), noWaits))
		r.do(-30, reg.PacketWriteImage, hQueue, 0, fields(u32(hA), uint32(0), b, uint64(textAt), noWaits))
		r.do(-30, reg.PacketFillImage, hQueue, 0, fields(u32(hA), uint32(0), b, color, noWaits))
		if e := r.post(reg.PacketImageBuffer, hQueue, 0, fields(u32(hA), u32(hB), b, uint64(0), noWaits)); e == 0 {
			t.Errorf("box %d", i)
		}
		if e, _, _ := r.next(); e.Status != -30 {
			t.Errorf("box %d: %+v", i, e)
		}
	}
	// The box is in the image, but not in the buffer.
	r.do(-30, reg.PacketImageBuffer, hQueue, 0, fields(u32(hA), u32(hB), box(0, 0, 8, 4), uint64(0), noWaits))
	r.do(-30, reg.PacketBufferImage, hQueue, 0, fields(u32(hA), u32(hB), box(0, 0, 4, 4), uint64(8), noWaits))
	data, _ := r.do(0, reg.PacketReadImage, hQueue, 0, fields(u32(hA), uint32(0), box(6, 3, 2, 1), uint64(0), noWaits))
	if !bytes.Equal(data, []byte{9, 0, 0, 0, 9, 0, 0, 0}) {
		t.Errorf("pixels %x", data)
	}
}

// A tenant that makes objects without end meets a bound, and the next one starts with none.
func TestObjectsWithoutEnd(t *testing.T) {
	r := newTenant(t, opencl.Spec{Memory: 64 << 20})
	r.do(0, reg.PacketSampler, 0, 0, fields(uint32(1), uint32(0), uint32(0x1130), uint32(0x1140)))
	made := 1
	for status := int32(0); status == 0; made++ {
		r.post(reg.PacketSampler, 0, 0, fields(u32(made+1), uint32(0), uint32(0x1130), uint32(0x1140)))
		e, _, ok := r.next()
		if !ok || made > reg.MaxObjects+1 {
			t.Fatalf("%d objects", made)
		}
		status = e.Status
	}
	if made != reg.MaxObjects+1 {
		t.Errorf("%d objects, want %d", made-1, reg.MaxObjects)
	}
	r.enable()
	r.addVectors(10)
}

// A tenant's program ends its own context, and nothing else.
func TestHostilePrograms(t *testing.T) {
	neighbour := newTenant(t, opencl.Spec{})
	r := newTenant(t, opencl.Spec{TimeLimit: limit})
	for name, test := range map[string]struct {
		source string
		want   reg.ComputeError
	}{
		"loops for ever": {"__kernel void f(__global volatile int *a) { while (a[0] == 0) a[1]++; }", reg.ComputeTimeLimit},
		"out of bounds":  {"__kernel void f(__global int *a) { for (long i = 0; i < 1L << 40; i += 4096) a[i] = 1; }", reg.ComputeEnded},
		"null pointer":   {"__kernel void f(__global int *a) { *(volatile __global int *)(long)(a[0] * 4) = 1; }", reg.ComputeEnded},
	} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			r.enable()
			r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), uint32(0)))
			r.do(0, reg.PacketBuffer, 0, 0, fields(u32(hA), uint32(0), uint64(1), uint64(4096)))
			r.build(test.source)
			r.kernel("f")
			r.do(0, reg.PacketFill, hQueue, 0, fields(u32(hA), uint32(4), uint64(0), uint64(4096), make([]byte, 8), noWaits))
			r.post(reg.PacketNDRange, hQueue, 0, ndrange(1, bufferArg(hA)))
			if test.want == reg.ComputeTimeLimit {
				r.host.Run(limit)
			}
			if e, _, ok := r.next(); ok {
				t.Fatalf("%+v", e)
			}
			if got := reg.ComputeError(r.read32(reg.ComputeErrorReg)); got != test.want {
				t.Errorf("error %v, want %v", got, test.want)
			}
		})
	}
	neighbour.addVectors(100)
	r.t = t
	r.enable()
	r.addVectors(100)
}

// A program cannot read files of the box: not by #include, not through build options.
func TestProgramsCannotReadTheFilesOfTheBox(t *testing.T) {
	v, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch {
	case e == unix.ENOSYS, e == unix.EOPNOTSUPP:
		t.Skipf("the kernel has no Landlock: %v", e)
	case e != 0:
		t.Fatalf("Landlock is refused: %v", e)
	case v < 2:
		t.Skipf("the kernel has version %d of Landlock: the engine needs 2", v)
	}
	dir, err := os.MkdirTemp("", "dxpu-test-") // beside the directories of the processes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.WriteFile(filepath.Join(dir, "secret.h"), []byte("#define SECRET 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := newTenant(t, opencl.Spec{})
	for i, p := range []struct{ source, options string }{
		{source: fmt.Sprintf("#include \"%s/secret.h\"\n__kernel void f(__global int *a) { a[0] = SECRET; }", dir)},
		{source: "#include \"secret.h\"\n__kernel void f(__global int *a) { a[0] = SECRET; }", options: "-I" + dir},
	} {
		handle := uint32(100 + i)
		r.vram(textAt, []byte(p.source))
		r.vram(textAt+4096, []byte(p.options))
		r.do(0, reg.PacketProgram, 0, 0, fields(handle, u32(reg.ProgramSource), uint64(textAt), uint64(len(p.source))))
		r.do(-11, reg.PacketBuild, 0, 0, fields(handle, uint32(0), uint64(textAt+4096), uint64(len(p.options))))
	}
	r.addVectors(100)
}

// A compiler that does not end, or that takes all memory, meets the limits.
func TestBuildBombs(t *testing.T) {
	r := newTenant(t, opencl.Spec{TimeLimit: limit})
	var bomb strings.Builder
	bomb.WriteString("#define A0 1+1\n")
	for i := 1; i < 40; i++ {
		fmt.Fprintf(&bomb, "#define A%d A%d+A%d\n", i, i-1, i-1)
	}
	bomb.WriteString("__kernel void f(__global int *a) { a[0] = A39; }\n")
	r.vram(textAt, []byte(bomb.String()))
	r.do(0, reg.PacketProgram, 0, 0, fields(u32(hProgram), u32(reg.ProgramSource), uint64(textAt), uint64(bomb.Len())))
	r.post(reg.PacketBuild, 0, 0, fields(u32(hProgram), uint32(0), uint64(textAt), uint64(0)))
	r.host.Run(limit)
	if e, _, ok := r.next(); ok {
		t.Fatalf("%+v", e)
	}
	r.enable()
	r.addVectors(100)
}

// Nothing of a tenant is left after Reset and Scrub: no process, no file, no bytes.
func TestNothingIsLeftForTheNextTenant(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	r := newTenant(t, opencl.Spec{})
	r.addVectors(1000)
	if n := len(entriesOf(t, tmp)); n != 1 {
		t.Errorf("%d directories of the engine", n)
	}
	r.dev.Reset(r.host.Now, device.ConventionalReset)
	r.dev.Scrub()
	if left := entriesOf(t, tmp); len(left) > 1 { // the last one may still be removed
		t.Errorf("left: %v", left)
	}
	for i, b := range r.host.Enumerate() {
		r.bars[i] = b.Addr
	}
	b, err := r.host.Read(r.bars[reg.BARVRAM]+textAt, 4000)
	if err != nil || !bytes.Equal(b, make([]byte, 4000)) {
		t.Errorf("VRAM holds %x: %v", b[:16], err)
	}
	r.enable()
	// The former tenant's objects are gone.
	r.do(-36, reg.PacketMarker, hQueue, 0, noWaits)
	r.addVectors(10)
}

func entriesOf(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestNoProgramAndNoDevice(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	if _, err := opencl.New(t.Context(), filepath.Join(t.TempDir(), "none"), opencl.Spec{}, log); err == nil {
		t.Error("a program that does not exist")
	}
	path := requirePlatform(t)
	if _, err := opencl.New(t.Context(), path, opencl.Spec{Device: "Voodoo"}, log); err == nil || !strings.Contains(err.Error(), "dxpu box devices") {
		t.Errorf("%v", err)
	}
	for _, aperture := range []int64{12345, 1 << 20, 1 << 33} {
		if _, err := opencl.New(t.Context(), path, opencl.Spec{Aperture: aperture}, log); err == nil || !strings.Contains(err.Error(), "2 MiB to 4 GiB") {
			t.Errorf("aperture %d: %v", aperture, err)
		}
	}
	t.Setenv("OCL_ICD_VENDORS", t.TempDir())
	if _, err := opencl.New(t.Context(), path, opencl.Spec{}, log); err == nil || !strings.Contains(err.Error(), "no OpenCL device") {
		t.Errorf("%v", err)
	}
}
