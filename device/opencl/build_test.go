package opencl_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dxpu-project/dxpu/device/devicetest"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/device/opencl"
)

// Programs that many threads build at the same time are all built, while kernels are
// compiled for their first launch.
func TestManyBuildsAtOnce(t *testing.T) {
	r := newTenant(t, opencl.Spec{})
	const programs, first = 6, 100
	r.addVectors(10) // hQueue, hKernel and the buffers
	r.vram(textAt, []byte(addSource))
	for i := range programs {
		r.do(0, reg.PacketProgram, 0, 0, fields(u32(first+i), u32(reg.ProgramSource), uint64(textAt), uint64(len(addSource))))
	}
	for i := range programs {
		r.post(reg.PacketBuild, 0, 0, fields(u32(first+i), uint32(0), uint64(textAt), uint64(0)))
		// A size of its own makes the platform compile the kernel for it.
		r.post(reg.PacketNDRange, hQueue, 0, ndrange(uint64(i%10+1), bufferArg(hA), bufferArg(hB), bufferArg(hC)))
	}
	for range 2 * programs {
		if e, _, ok := r.next(); !ok || e.Status != 0 {
			t.Fatalf("%v %+v", ok, e)
		}
	}
}

// The arguments of a linked program's kernels are described, as those of a built one.
func TestKernelsOfLinkedPrograms(t *testing.T) {
	r := newTenant(t, opencl.Spec{})
	r.vram(textAt, []byte(addSource))
	r.do(0, reg.PacketProgram, 0, 0, fields(u32(hA), u32(reg.ProgramSource), uint64(textAt), uint64(len(addSource))))
	r.do(0, reg.PacketCompile, 0, 0, fields(u32(hA), uint32(0), uint64(textAt), uint64(0)))
	r.do(0, reg.PacketLink, 0, 0, fields(u32(hProgram), uint32(1), uint64(textAt), uint64(0), u32(hA), uint32(0)))
	r.do(0, reg.PacketRelease, 0, 0, fields(u32(hA), uint32(0)))
	k := r.kernel("add")
	if name := property(t, k[8:], 0x119a, 2); string(name) != "c\x00" {
		t.Errorf("argument 2 is %q", name)
	}
	for _, h := range []int{hKernel, hProgram} {
		r.do(0, reg.PacketRelease, 0, 0, fields(u32(h), uint32(0)))
	}
}

// A linked program may have a kernel whose name is longer than that of a file, on which PoCL
// aborts when it makes the binary of the program.
func TestLinkedKernelOfALongName(t *testing.T) {
	r := newTenant(t, opencl.Spec{})
	name := strings.Repeat("f", 2048)
	source := "__kernel void " + name + "(__global int *a) { a[0] = 1; }"
	r.vram(textAt, []byte(source))
	r.do(0, reg.PacketProgram, 0, 0, fields(u32(hA), u32(reg.ProgramSource), uint64(textAt), uint64(len(source))))
	r.do(0, reg.PacketCompile, 0, 0, fields(u32(hA), uint32(0), uint64(textAt), uint64(0)))
	r.do(0, reg.PacketLink, 0, 0, fields(u32(hProgram), uint32(1), uint64(textAt), uint64(0), u32(hA), uint32(0)))
	r.kernel(name)
}

// A platform that aborts, as PoCL does when it cannot compile, is the loss of the GPU's
// context, and the log says what the platform said.
func TestPlatformThatAborts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "engine")
	script := `#!/bin/sh
[ $# -gt 0 ] || { echo '[{"name": "a", "memory": 1048576, "available": true}]'; exit; }
echo 'Failed to create kernel compiler pass' >&2
kill -ABRT $$
`
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	var text logText
	d, err := opencl.New(t.Context(), path, opencl.Spec{}, slog.New(slog.NewTextHandler(&text, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{}, 1)
	d.SetNotify(func() { ended <- struct{}{} })
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { d.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	r := &tenant{t: t, dev: d, host: devicetest.NewHost(d)}
	r.mem = r.host.AddMemory(memBase, memSize)
	for i, b := range r.host.Enumerate() {
		r.bars[i] = b.Addr
	}
	r.start()
	<-ended
	r.host.Pump()
	if s := r.state(); s != reg.ComputeFailed {
		t.Errorf("state %v", s)
	}
	if s := text.String(); !strings.Contains(s, "signal: aborted") || !strings.Contains(s, "kernel compiler pass") {
		t.Errorf("log %q", s)
	}
}

// logText is a log that a test reads while another goroutine writes.
type logText struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
