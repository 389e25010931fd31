package hook

import (
	"fmt"
	"strings"
	"testing"
)

// memoryWays are the ways of testdata/share.c to take memory.
var memoryWays = []string{
	"cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocPitch_v2", "cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemAllocFromPoolAsync",
	"cuMemAllocFromPoolAsync_ptsz", "cuArrayCreate_v2", "cuArray3DCreate_v2", "cuMipmappedArrayCreate", "cuMemCreate", "cuMemMap",
	"cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz", "cuGraphInstantiate_v2", "cuGraphInstantiate",
}

// awaitUsed waits until the process tells that the share uses as many bytes.
func (a *scripted) awaitUsed(bytes uint64) {
	a.t.Helper()
	a.await(fmt.Sprintf("%d bytes in use", bytes), func() bool { return a.used == bytes })
}

// Each way to take memory stops at the limit, to the byte, and gives its memory back.
// Memory that a pool keeps makes room for other ways.
func TestShareMemory(t *testing.T) {
	const limit = 4096 // a multiple of the pitch
	for _, way := range memoryWays {
		t.Run(way, func(t *testing.T) {
			x := newSharing(t, limit)
			p := x.start(t)
			p.do(success, "init")
			p.do(success, "take %s %d 0", way, limit)
			x.agent.awaitUsed(limit)
			p.do(outOfMemory, "take %s 1 1", way)
			p.do(outOfMemory, "take cuMemAlloc_v2 1 1")
			p.do(success, "drop 0")
			p.do(success, "take %s %d 0", way, limit)
			p.do(success, "drop 0")
			p.do(success, "take cuMemAlloc_v2 %d 0", limit)
			p.do(success, "drop 0")
			x.agent.awaitUsed(0)
			p.end()
			if peak, used := x.gpuWord(t, gpuPeak), x.gpuWord(t, gpuInUse); peak != limit || used != 0 {
				t.Errorf("the GPU had at most %d bytes in use, and %d at the end", peak, used)
			}
		})
	}
}

// Memory that the agent granted and the driver refuses is given back.
func TestShareDriverRefuses(t *testing.T) {
	for _, way := range memoryWays {
		call, result := way, outOfMemory
		if strings.HasPrefix(way, "cuGraphInstantiate") {
			call = "cuGraphInstantiateWithFlags" // as which the fake has all forms
		}
		t.Run(way, func(t *testing.T) {
			x := newSharing(t, 4096, fmt.Sprintf("FAKE_GPU_ERRORS=%s@1=%d", call, result))
			p := x.start(t)
			p.do(success, "init")
			p.do(result, "take %s 512 0", way)
			x.agent.awaitUsed(0)
			p.do(success, "take %s 512 0", way)
			x.agent.awaitUsed(512)
			p.end()
		})
	}
}

// Eight processes that take and free memory in all ways at random never exceed the
// limit by a byte, and leave nothing.
func TestShareProcesses(t *testing.T) {
	const limit, processes, rounds = 60_000, 8, 300
	x := newSharing(t, limit)
	all := make([]*sharer, processes)
	for i := range all {
		all[i] = x.start(t)
		all[i].do(success, "init")
	}
	for i, p := range all {
		p.send("stress x %d %d", i+1, rounds)
	}
	var refusals uint64
	for _, p := range all {
		r, n, _ := p.answer()
		if r != success {
			t.Fatalf("result %d", r)
		}
		refusals += n
	}
	if refusals == 0 {
		t.Error("the share refused nothing: the limit was not reached")
	}
	for _, p := range all {
		p.end()
	}
	x.agent.awaitUsed(0)
	if peak := x.gpuWord(t, gpuPeak); peak > limit || peak < limit/2 {
		t.Errorf("at most %d bytes were in use, limit %d", peak, limit)
	}
	if x.agent.peak > limit {
		t.Errorf("the agent granted %d bytes", x.agent.peak)
	}
}

// The driver's padding counts. Memory that does not fit with it is freed again.
func TestSharePadding(t *testing.T) {
	for _, tc := range []struct {
		way   string
		bytes uint64 // that 301 bytes take
		after uint64 // when a second allocation was undone
	}{
		{"cuArrayCreate_v2", 600, 600},
		{"cuArray3DCreate_v2", 600, 600},
		{"cuMipmappedArrayCreate", 600, 600},
		{"cuMemAllocAsync", 500, 301}, // the pool was trimmed
		{"cuMemAllocFromPoolAsync", 500, 301},
		{"cuMemAllocPitch_v2", 512, 512},
	} {
		t.Run(tc.way, func(t *testing.T) {
			x := newSharing(t, tc.bytes+400, "FAKE_GPU_PAD=300", "FAKE_GPU_CHUNK=500")
			p := x.start(t)
			p.do(success, "init")
			p.do(success, "take %s 301 0", tc.way)
			x.agent.awaitUsed(tc.bytes)
			p.do(outOfMemory, "take %s 301 1", tc.way)
			x.agent.awaitUsed(tc.after)
			if used := x.gpuWord(t, gpuInUse); used != tc.after {
				t.Errorf("%d bytes of the GPU are in use, want %d", used, tc.after)
			}
			// The chunk of a pool is known only when the driver has taken it.
			if peak := x.gpuWord(t, gpuPeak); tc.bytes != 500 && peak > tc.bytes+400 {
				t.Errorf("at most %d bytes of the GPU were in use, limit %d", peak, tc.bytes+400)
			}
			p.end()
		})
	}
}

// The end of a context frees its memory, unless the driver fails.
func TestShareContexts(t *testing.T) {
	x := newSharing(t, 10_000, "FAKE_GPU_ERRORS=cuCtxDestroy_v2@1=1 cuDevicePrimaryCtxReset_v2@1=1")
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "take cuMemAlloc_v2 100 0")
	p.do(success, "context 0")
	for i, way := range []string{"cuMemAlloc_v2", "cuArrayCreate_v2", "cuMemAllocManaged"} {
		p.do(success, "take %s 1000 %d", way, i+1)
	}
	p.do(success, "limit heap 500")
	x.agent.awaitUsed(3600)
	p.do(1, "destroy")
	x.agent.awaitUsed(3600)
	p.do(success, "destroy")
	x.agent.awaitUsed(100)
	p.do(1, "reset")
	x.agent.awaitUsed(100)
	p.do(success, "reset")
	x.agent.awaitUsed(0)
	p.do(invalidContext, "take cuMemAlloc_v2 1 0")
	p.end()
}

// A primary context ends with its last release, and the limits of a context that are
// memory count.
func TestShareRelease(t *testing.T) {
	x := newSharing(t, 10_000)
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "take cuMemAllocPitch_v2 100 0")
	p.do(success, "limit heap 1000")
	x.agent.awaitUsed(1512)
	p.do(success, "limit heap 900") // frees nothing
	p.do(outOfMemory, "limit heap 10000")
	x.agent.awaitUsed(1512)
	p.do(success, "release")
	x.agent.awaitUsed(0)
	p.end()
}

// Memory with a handle counts while a reference or a mapping is left; memory of others
// and unknown addresses do not count.
func TestShareHandles(t *testing.T) {
	x := newSharing(t, 1000, "FAKE_GPU_ERRORS=cuMemUnmap@1=1 cuMemRelease@4=1 cuMemMap@2=1")
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "take cuMemMap 600 0") // references released: the mapping is left
	x.agent.awaitUsed(600)
	p.do(1, "drop 0")
	x.agent.awaitUsed(600)
	p.do(success, "drop 0")
	x.agent.awaitUsed(0)
	p.do(1, "take cuMemMap 700 1") // a mapping that the driver refuses; then its release
	x.agent.awaitUsed(0)
	p.do(success, "take cuMemCreate 500 2")
	p.do(1, "drop 2")
	x.agent.awaitUsed(500)
	p.do(success, "again x 0 2") // its own export: one more reference
	p.do(success, "drop 2")
	x.agent.awaitUsed(500)
	p.do(success, "sparse x 0 2")
	p.do(success, "drop 2")
	x.agent.awaitUsed(500) // the sparse array has it
	p.do(success, "import")
	p.do(invalidValue, "free 0x5000")
	p.do(success, "free 0")
	x.agent.awaitUsed(500)
	p.end()
}

// The first forms of calls are refused, and pools that the program destroys leave only
// what is in use.
func TestShareOddCalls(t *testing.T) {
	x := newSharing(t, 1000)
	p := x.start(t)
	p.do(success, "init")
	p.do(notSupported, "old")
	p.do(outOfMemory, "take cuMemAlloc_v2 18446744073709551615 0")
	p.do(outOfMemory, "take cuMemAllocAsync 18446744073709551615 0")
	p.do(outOfMemory, "take cuMemAllocPitch_v2 18446744073709551615 0")
	p.do(outOfMemory, "take cuMipmappedArrayCreate 18446744073709551615 0")
	p.do(success, "take cuMemAllocFromPoolAsync 300 0")
	p.do(success, "take cuMemAllocFromPoolAsync 200 1")
	p.do(success, "drop 0")
	x.agent.awaitUsed(500)
	p.do(success, "endpool")
	x.agent.awaitUsed(200)
	p.do(success, "drop 1")
	x.agent.awaitUsed(0)
	p.end()
}

// A GPU that is not in the page is no part of the share.
func TestShareOtherGPU(t *testing.T) {
	for _, tc := range []struct {
		name  string
		words map[int]uint64 // of the page
		in    bool           // device 0 is in the share
	}{
		{"ordinal", nil, true},
		{"UUID", map[int]uint64{pageGPU: 0xa0a0a0a0a0a0a0a0, pageGPU + 8: 0xa0a0a0a0a0a0a0a0}, true},
		{"another UUID", map[int]uint64{pageGPU: 0xb0b0b0b0b0b0b0b0}, false},
		{"PCI address", map[int]uint64{pageGPU + 16: 0x3b00 << 32}, true},
		{"another PCI address", map[int]uint64{pageGPU + 16: 0x3b08 << 32}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newSharing(t, 1000, "FAKE_GPU_DEVICES=2")
			for at, v := range tc.words {
				x.agent.set64(at, v)
			}
			x.agent.set32(gpuGate, 1)
			p := x.start(t)
			if !tc.in {
				p.do(notPermitted, "init") // the program begins with a context of device 0
				p.do(invalidContext, "take cuMemAlloc_v2 1 1")
				p.do(invalidContext, "launch cuLaunchKernel")
				p.end()
				return
			}
			p.do(success, "init")
			p.do(success, "take cuMemAlloc_v2 1 0")
			p.do(success, "launch cuLaunchKernel")
			p.do(notPermitted, "context 1")
			p.do(outOfMemory, "take-on x 1 1")
			if _, total := p.do(success, "total 1"); total != 0 {
				t.Errorf("total %d of another GPU", total)
			}
			p.end()
		})
	}
}

// A share is resized while it runs; a smaller one than what is in use has nothing left.
func TestShareResize(t *testing.T) {
	x := newSharing(t, 1000)
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "take cuMemAlloc_v2 800 0")
	x.agent.set64(gpuLimit, 500)
	if free, total := p.do(success, "info"); free != 0 || total != 500 {
		t.Errorf("%d of %d bytes are free, want 0 of 500", free, total)
	}
	p.do(outOfMemory, "take cuMemAlloc_v2 1 1")
	x.agent.set64(gpuLimit, 2000)
	p.do(success, "take cuMemAlloc_v2 1200 1")
	p.end()
}

// Stacks that are larger than usual count: the driver has one for each thread of the GPU.
func TestShareStacks(t *testing.T) {
	x := newSharing(t, 10_000)
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "limit stack 1024")
	p.do(success, "limit stack 1124")
	x.agent.awaitUsed(100 * 20)
	p.do(outOfMemory, "limit stack 2048")
	x.agent.awaitUsed(100 * 20)
	p.do(success, "release")
	x.agent.awaitUsed(0)
	p.end()
}

// Memory in graphs within a graph counts. A graph that is too deep to be counted is refused.
func TestShareNestedGraph(t *testing.T) {
	x := newSharing(t, 1000)
	x.program = "nested"
	p := x.start(t)
	p.do(success, "init 0 0")
	for _, depth := range []int{0, 1, 15} {
		p.do(success, "nest %d 1000", depth)
		p.do(outOfMemory, "nest %d 1001", depth)
	}
	p.do(outOfMemory, "nest 40 1001")
	p.do(outOfMemory, "nest 40 1")
	p.end()
	if peak := x.gpuWord(t, gpuPeak); peak != 1000 {
		t.Errorf("at most %d bytes of the GPU were in use, limit 1000", peak)
	}
}

// Memory that a graph allocated and the program did not free counts after the graph's end,
// as does what the driver keeps.
func TestShareUnfreedGraph(t *testing.T) {
	x := newSharing(t, 1000, "FAKE_GPU_UNFREED=300")
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "take cuGraphInstantiateWithFlags 700 0")
	p.do(success, "drop 0")
	x.agent.awaitUsed(300)
	p.do(outOfMemory, "take cuMemAlloc_v2 701 1")
	p.do(success, "take cuGraphInstantiateWithFlags 700 0")
	p.do(success, "drop 0")
	x.agent.awaitUsed(300)
	if peak := x.gpuWord(t, gpuPeak); peak > 1000 {
		t.Errorf("%d bytes were in use", peak)
	}
	p.end()
}

// A pool that the program destroyed keeps its chunks until its last allocation is freed.
func TestShareDestroyedPool(t *testing.T) {
	x := newSharing(t, 2000, "FAKE_GPU_CHUNK=500", "FAKE_GPU_CHUNKS_STAY=1")
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "take cuMemAllocFromPoolAsync 1 0")
	x.agent.awaitUsed(500)
	p.do(success, "endpool")
	p.do(outOfMemory, "take cuMemAlloc_v2 1501 1")
	x.agent.awaitUsed(500)
	p.do(success, "drop 0")
	x.agent.awaitUsed(0)
	p.end()
}

// A stream's context tells the GPU of its memory, not the current context.
func TestShareOtherStream(t *testing.T) {
	x := newSharing(t, 1000, "FAKE_GPU_DEVICES=2")
	x.agent.set32(pageCount, 2)
	x.agent.set64(gpuLimit+128, 1000)
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "other 1")
	p.do(success, "take-other x 100")
	x.agent.awaitUsed(100)
	x.agent.mu.Lock()
	last := x.agent.lastAsked
	x.agent.mu.Unlock()
	if last != 1 {
		t.Errorf("the memory was asked for on GPU %d", last)
	}
	p.end()
}

// The deprecated end of a context frees its memory; the end of a green one does not.
func TestShareOddContexts(t *testing.T) {
	x := newSharing(t, 1000, "FAKE_GPU_CLOCK=step")
	a := x.agent
	a.set32(gpuGate, 1)
	p := x.start(t)
	p.do(success, "init")
	p.do(notSupported, "attach")
	p.do(success, "context 0")
	p.do(success, "take cuMemAlloc_v2 100 0")
	p.do(success, "detach")
	a.awaitUsed(0)
	p.do(success, "green")
	p.do(success, "take cuMemAlloc_v2 100 0")
	p.do(success, "launch cuLaunch") // into the green context's default stream
	p.do(success, "end-green")
	a.await("DONE", func() bool { return a.count(done) == 1 })
	a.awaitUsed(100)
	p.do(success, "drop 0")
	a.awaitUsed(0)
	p.end()
}
