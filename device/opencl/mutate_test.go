package opencl_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/device/opencl"
)

// order is a packet that a test may change before it posts it.
type order struct {
	op    reg.PacketOp
	queue uint32
	flags uint16
	body  []byte
}

// Handles of the objects of orders, behind those of the tests.
const (
	hLoose = iota + 20
	hPart
	hImage
	hInBuffer
	hSolid
	hSampler
	hLibrary
	hLinked
	hPicture
	hLocal
)

const mutateSource = `__kernel void add(__global const float *a, __global const float *b, __global float *c) {
	size_t i = get_global_id(0);
	if (a && b && c) c[i] = a[i] + b[i];
}
__kernel void picture(__read_only image2d_t p, sampler_t s, __global uint4 *a) { if (a) a[0] = read_imageui(p, s, (int2)(0, 0)); }
__kernel void locals(__global int *a, __local int *l, int4 v, long w) {
	l[0] = v.x + w;
	if (a) a[0] = l[0];
	printf("%d", v.y);
}
int other(int v) { return v; }`

// orders are packets of all operations, which are right in this order.
func orders() []order {
	text := func(op reg.PacketOp, a, b uint32, at, n uint64, more ...any) order {
		return order{op: op, body: fields(append([]any{a, b, at, n}, more...)...)}
	}
	kernel := func(handle int, name string) order {
		return order{op: reg.PacketKernel, body: fields(u32(handle), u32(hProgram), u32(len(name)), uint32(0), name)}
	}
	run := func(queue, kernel int, n uint64, local uint64, args ...[]byte) order {
		b := fields(u32(kernel), uint32(1), u32(len(args)), uint32(0), make([]byte, 24), n, make([]byte, 16), local, make([]byte, 16))
		return order{op: reg.PacketNDRange, queue: u32(queue), flags: 2, body: append(append(b, bytes.Join(args, nil)...), noWaits...)}
	}
	box := func(values ...uint64) (b []byte) {
		for _, v := range values {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return b
	}
	imageArg := fields(u32(reg.ArgImage), uint32(4), u32(hImage), uint32(0))
	samplerArg := fields(u32(reg.ArgSampler), uint32(4), u32(hSampler), uint32(0))
	localArg := fields(u32(reg.ArgLocal), uint32(64))
	vector := fields(u32(reg.ArgValue), uint32(16), make([]byte, 16))
	number := fields(u32(reg.ArgValue), uint32(8), uint64(7))
	one := func(h int) []byte { return fields(u32(h), uint32(0)) }
	n := uint64(len(mutateSource))
	return []order{
		{op: reg.PacketInfo},
		{op: reg.PacketQueue, body: one(hQueue)},
		{op: reg.PacketQueue, body: fields(u32(hLoose), u32(reg.QueueOutOfOrder))},
		{op: reg.PacketBuffer, body: fields(u32(hA), uint32(0), uint64(1), uint64(4096))},
		{op: reg.PacketBuffer, body: fields(u32(hB), uint32(0), uint64(1), uint64(4096))},
		{op: reg.PacketBuffer, body: fields(u32(hC), uint32(0), uint64(1), uint64(4096))},
		{op: reg.PacketSubBuffer, body: fields(u32(hPart), u32(hA), uint64(1), uint64(1024), uint64(1024))},
		{op: reg.PacketImage, body: imageFields(hImage, 0, 0x10b5, 0x10da, 0x10f1, 8, 8, 0)},
		{op: reg.PacketImage, body: imageFields(hInBuffer, hB, 0x10b5, 0x10da, 0x10f6, 64, 0, 0)},
		{op: reg.PacketImage, body: fields(u32(hSolid), uint32(0), uint64(1), uint32(0x10b5), uint32(0x10da), uint32(0x10f2), uint32(0), uint64(4), uint64(4), uint64(4), uint64(0), uint64(0))},
		{op: reg.PacketSampler, body: fields(u32(hSampler), uint32(0), uint32(0x1131), uint32(0x1140))},
		{op: reg.PacketFormats, body: fields(uint64(1), uint32(0x10f1), uint32(0))},
		{op: reg.PacketSVM, body: fields(u32(hShared), uint32(0), uint64(1), uint64(8192))},
		{op: reg.PacketSVMBuffer, body: fields(u32(hOver), u32(hShared), uint64(1), uint64(4096), uint64(4096))},
		text(reg.PacketProgram, hProgram, reg.ProgramSource, textAt, n),
		text(reg.PacketBuild, hProgram, 0, textAt, 0),
		text(reg.PacketProgram, hLibrary, reg.ProgramSource, textAt, n),
		text(reg.PacketCompile, hLibrary, 1, textAt, 0, u32(hProgram), uint32(3), "a.h"),
		text(reg.PacketLink, hLinked, 1, textAt, 0, u32(hLibrary), uint32(0)),
		{op: reg.PacketProgramInfo, body: fields(u32(hProgram), u32(reg.ProgramBytes))},
		{op: reg.PacketProgramInfo, body: fields(u32(hLinked), u32(reg.ProgramKernels))},
		kernel(hKernel, "add"),
		kernel(hPicture, "picture"),
		kernel(hLocal, "locals"),
		{op: reg.PacketSubGroups, body: fields(u32(hKernel), uint32(0x2034), uint32(8), uint32(0), uint64(8))},
		{op: reg.PacketConstant, body: fields(u32(hProgram), uint32(7), uint32(4), uint32(0), uint64(1))},
		{op: reg.PacketTimer},
		{op: reg.PacketWrite, queue: hQueue, body: fields(u32(hA), uint32(0), uint64(0), uint64(4096), uint64(textAt), noWaits)},
		{op: reg.PacketWrite, queue: hLoose, body: fields(u32(hPart), uint32(0), uint64(16), uint64(64), uint64(textAt), noWaits)},
		{op: reg.PacketFill, queue: hLoose, body: fields(u32(hB), uint32(16), uint64(0), uint64(4096), make([]byte, 16), noWaits)},
		{op: reg.PacketWriteRect, queue: hQueue, body: fields(u32(hA), uint32(0), box(1, 1, 1, 16, 64, 8, 2, 2), uint64(textAt), noWaits)},
		run(hQueue, hKernel, 64, 8, bufferArg(hA), bufferArg(hPart), bufferArg(hC)),
		run(hQueue, hPicture, 1, 1, imageArg, samplerArg, bufferArg(hC)),
		run(hLoose, hLocal, 16, 16, bufferArg(hC), localArg, vector, number),
		run(hQueue, hKernel, 64, 8, sharedArg(hShared, 64), bufferArg(hOver), bufferArg(hB)),
		{op: reg.PacketMarker, queue: hLoose, flags: reg.MarkerBarrier, body: noWaits},
		{op: reg.PacketMarker, queue: hLoose, body: fields(uint32(2), uint32(0), uint64(1), uint64(2))},
		{op: reg.PacketCopy, queue: hQueue, body: fields(u32(hA), u32(hC), uint64(0), uint64(64), uint64(128), noWaits)},
		{op: reg.PacketCopyRect, queue: hQueue, body: fields(u32(hA), u32(hC), box(0, 0, 0, 16, 64), box(1, 1, 0, 32, 256), box(8, 2, 2), noWaits)},
		{op: reg.PacketFillImage, queue: hQueue, body: fields(u32(hImage), uint32(0), box(1, 1, 0, 4, 4, 1), make([]byte, 16), noWaits)},
		{op: reg.PacketWriteImage, queue: hQueue, body: fields(u32(hImage), uint32(0), box(0, 0, 0, 8, 8, 1), uint64(textAt), noWaits)},
		{op: reg.PacketReadImage, queue: hLoose, body: fields(u32(hSolid), uint32(0), box(0, 0, 0, 4, 4, 4), uint64(0), noWaits)},
		{op: reg.PacketCopyImage, queue: hQueue, body: fields(u32(hImage), u32(hSolid), box(0, 0, 0), box(0, 0, 1), box(4, 4, 1), noWaits)},
		{op: reg.PacketImageBuffer, queue: hQueue, body: fields(u32(hImage), u32(hC), box(0, 0, 0, 8, 8, 1), uint64(0), noWaits)},
		{op: reg.PacketBufferImage, queue: hQueue, body: fields(u32(hA), u32(hImage), box(0, 0, 0, 8, 8, 1), uint64(0), noWaits)},
		{op: reg.PacketReadRect, queue: hQueue, body: fields(u32(hA), uint32(0), box(1, 1, 1, 16, 64, 8, 2, 2), uint64(0), noWaits)},
		{op: reg.PacketRead, queue: hQueue, body: fields(u32(hC), uint32(0), uint64(0), uint64(4096), uint64(0), noWaits)},
		{op: reg.PacketOutput},
		{op: reg.PacketRelease, body: one(hPart)},
		{op: reg.PacketRelease, body: one(hKernel)},
		{op: reg.PacketRelease, body: one(hShared)},
		{op: reg.PacketRelease, body: one(hInBuffer)},
		{op: reg.PacketRelease, body: one(hLoose)},
	}
}

// mutate changes an order in a way that a driver would not.
func mutate(rnd *rand.Rand, in order) (o order) {
	o = in
	words := []uint64{0, 1, 2, 3, 4, 7, 8, 31, 32, 64, 4095, 4096, 4097, 1 << 20, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1 << 40, 1 << 47, 1<<63 - 1, 1 << 63, ^uint64(0), ^uint64(7)}
	o.body = bytes.Clone(o.body)
	if sizes := o.body; o.op == reg.PacketNDRange && len(sizes) >= 64 {
		sizes = bytes.Clone(sizes[16:64])
		defer func() { // kernels are not to run for ever, or outside of their buffers
			if len(o.body) >= 64 {
				copy(o.body[16:64], sizes)
			}
		}()
	}
	switch way := rnd.IntN(12); {
	case way < 4 && len(o.body) >= 4:
		at := rnd.IntN(len(o.body)/4) * 4
		v := uint32(words[rnd.IntN(len(words))])
		if rnd.IntN(3) == 0 {
			v = rnd.Uint32N(60)
		}
		binary.LittleEndian.PutUint32(o.body[at:], v)
	case way < 7 && len(o.body) >= 8:
		at := rnd.IntN(len(o.body)/8) * 8
		binary.LittleEndian.PutUint64(o.body[at:], words[rnd.IntN(len(words))])
	case way == 7 && len(o.body) > 0:
		o.body[rnd.IntN(len(o.body))] ^= 1 << rnd.IntN(8)
	case way == 8:
		o.body = o.body[:rnd.IntN(len(o.body)/8+1)*8]
	case way == 9:
		for range 8 * rnd.IntN(40) {
			o.body = append(o.body, byte(rnd.Uint32()))
		}
	case way == 10:
		o.op = reg.PacketOp(rnd.IntN(70))
	default:
		o.flags = uint16(rnd.Uint32())
		if rnd.IntN(2) == 0 {
			o.flags &= 7
		}
		o.queue = rnd.Uint32N(40)
	}
	return o
}

// patience is how long a test waits for an event of mutated packets before it lets the time limit pass.
const patience = 10 * time.Second

// drain takes the events of packets, and reports whether the context goes on. Packets that are right take
// as long as the machine needs. Of others a kernel may run on: the time limit ends it.
func (r *tenant) drain(posted int, right bool) bool {
	r.t.Helper()
	for got, waits := 0, 0; got < posted; {
		r.host.Run(10 * time.Millisecond) // a packet may fetch its data from the host
		count := r.count()
		if count&reg.EventsFailed != 0 {
			return false
		}
		if n := uint32(count) - r.seen; n > 0 {
			got += int(n)
			waits = 0
			r.seen += n
			r.write32(reg.ComputeSeen, r.seen)
			continue
		}
		var over <-chan time.Time
		if !right {
			over = time.After(patience)
		}
		select {
		case <-r.notice:
		case <-over:
			if waits++; waits > 3 {
				r.t.Fatalf("%d of %d packets have no event, and the context has not ended", posted-got, posted)
			}
			r.host.Run(limit)
		}
	}
	return true
}

// garbage puts bytes into the ring, in the place of packets.
func (r *tenant) garbage(rnd *rand.Rand) {
	b := make([]byte, 8*(1+rnd.IntN(500)))
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	if rnd.IntN(2) == 0 { // a size that may be one
		binary.LittleEndian.PutUint32(b, 8*rnd.Uint32N(1000))
	}
	from := r.tail % ringSize
	n := min(uint32(len(b)), ringSize-from)
	r.vram(ringAt+uint64(from), b[:n])
	r.vram(ringAt, b[n:])
	r.tail += uint32(len(b)) - 8*rnd.Uint32N(2)
	r.write32(reg.ComputeTail, r.tail)
	r.host.Run(time.Second)
}

// descriptors counts the open files of this process, which are those of all boxes of the test.
func descriptors(t *testing.T) int {
	t.Helper()
	return len(entriesOf(t, "/proc/self/fd"))
}

// The descriptors of a context go with it, whether its process slept or not when packets came.
func TestContextsLeaveNoDescriptors(t *testing.T) {
	r := newTenant(t, opencl.Spec{})
	r.addVectors(10)
	r.enable()
	open := descriptors(t)
	for range 3 {
		r.addVectors(100)
		r.enable()
	}
	if n := descriptors(t); n > open {
		t.Errorf("%d descriptors, %d before", n, open)
	}
}

// A driver that sends anything, most of it almost right, ends its own context at most. A neighbour
// computes meanwhile, keeps its bytes, and shows none of them. Contexts leave no descriptors.
func TestMutatedPackets(t *testing.T) {
	const rounds, packets, batch = 3, 600, 12
	neighbour := newTenant(t, opencl.Spec{})
	secret := make([]byte, 64)
	for i := range secret {
		secret[i] = byte(i*37 + 11)
	}
	neighbour.vram(textAt+1<<19, secret)
	r := newTenant(t, opencl.Spec{Memory: 64 << 20, TimeLimit: limit})
	open := descriptors(t)
	list := orders()
	for round := range rounds {
		rnd := rand.New(rand.NewPCG(0, uint64(round)))
		r.vram(textAt, []byte(mutateSource))
		for _, o := range list {
			r.post(o.op, o.queue, o.flags, o.body)
		}
		alive := r.drain(len(list), true)
		if !alive {
			t.Fatal("packets that are right end the context")
		}
		for n := 0; n < packets && alive; n += batch {
			for range batch {
				o := mutate(rnd, list[rnd.IntN(len(list))])
				if rnd.IntN(4) == 0 {
					o = mutate(rnd, o)
				}
				r.post(o.op, o.queue, o.flags, o.body)
			}
			alive = r.drain(batch, false)
		}
		r.garbage(rnd)
		neighbour.addVectors(100)
		neighbour.enable()
		if bytes.Contains(r.mem, secret) {
			t.Error("the memory of the neighbour is there")
		}
		r.enable()
	}
	r.addVectors(100)
	neighbour.addVectors(100)
	if b, err := neighbour.host.Read(neighbour.bars[reg.BARVRAM]+textAt+1<<19, len(secret)); err != nil || !bytes.Equal(b, secret) {
		t.Errorf("the memory of the neighbour is %x: %v", b, err)
	}
	if n := descriptors(t); n > open {
		t.Errorf("%d descriptors, %d before", n, open)
	}
}

// mutated makes a context of packets, none of them with shared memory: a context with it does not move.
// It reports whether the context goes on.
func (r *tenant) mutated(seed uint64) bool {
	const packets, batch = 300, 12
	rnd := rand.New(rand.NewPCG(5, seed))
	list := slices.DeleteFunc(orders(), func(o order) bool { return o.op == reg.PacketSVM })
	r.vram(textAt, []byte(mutateSource))
	for _, o := range list {
		r.post(o.op, o.queue, o.flags, o.body)
	}
	alive := r.drain(len(list), true)
	for n := 0; n < packets && alive; n += batch {
		for range batch {
			o := mutate(rnd, list[rnd.IntN(len(list))])
			if o.op == reg.PacketSVM {
				o.op = 0
			}
			r.post(o.op, o.queue, o.flags, o.body)
		}
		alive = r.drain(batch, false)
	}
	return alive
}

// A context that was made by such packets moves to another device as any other, and ends there.
func TestMutatedContextMoves(t *testing.T) {
	const seeds = 8
	r := newTenant(t, opencl.Spec{Memory: 256 << 20, TimeLimit: limit})
	for seed := uint64(0); !r.mutated(seed); seed++ {
		t.Logf("seed %d: the context ended: %v", seed, reg.ComputeError(r.read32(reg.ComputeErrorReg)))
		if seed == seeds-1 {
			t.Fatal("no context goes on")
		}
		r.enable()
	}
	r.move()
	r.post(reg.PacketInfo, 0, 0, nil)
	if !r.drain(1, true) {
		t.Error("the context has not moved")
	}
	r.enable()
	r.addVectors(10)
}
