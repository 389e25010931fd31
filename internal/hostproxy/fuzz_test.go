package hostproxy_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/vfiouser"
)

const (
	guestMemory     = 1 << 20 // bus address of the memory of a fuzzed guest
	guestMemorySize = 64 << 10
	guestBAR32      = 0xc000_0000
	guestBAR64      = 0x80_0000_0000
)

// script is what a fuzzed guest does: operations of scriptOp bytes, behind them
// what its memory holds.
const scriptOp = 16

// Operations: the first byte modulo their number. The second byte is a region
// (and queue), the next two and the last four what else there is to choose.
const (
	opWrite  = iota // posted: region, 32-bit offset modulo the size, 8 bytes
	opSync          // the same, answered
	opRead          // 1 to 64 bytes
	opQueue         // a register of a queue
	opConfig        // 4 bytes of configuration space
	opRing          // queue set up on the guest's memory, as a driver does, and doorbell
	opMap           // DMA_MAP or DMA_UNMAP of any range
	opIRQ           // SET_IRQS
	opReset         // DEVICE_RESET
	opMSIX          // an entry of the MSI-X table
	opCount
)

// FuzzGuest is a guest that does what it likes, to everything that it can reach:
// all regions at all widths, rings with any commands, mappings, interrupts and
// resets, through the vfio-user server, the link and the device. In every
// case both proxies continue, the connection lasts, and a reset restores the
// device.
func FuzzGuest(f *testing.F) {
	op := func(kind, region byte, choice uint16, off uint32, value uint64) []byte {
		b := []byte{kind, region}
		b = binary.LittleEndian.AppendUint16(b, choice)
		b = binary.LittleEndian.AppendUint32(b, off)
		return binary.LittleEndian.AppendUint64(b, value)
	}
	commands := func(all ...reg.Command) (out []byte) {
		for _, c := range all {
			out = c.Append(out)
		}
		return out
	}
	const inMemory = guestMemory + 32<<10
	start := op(opRing, 0, 8, 0, 8)
	script := func(memory []byte, ops ...[]byte) {
		var b []byte
		for _, o := range ops {
			b = append(b, o...)
		}
		f.Add(uint8(len(ops)), append(b, memory...))
	}
	script(commands(
		reg.CopyToVRAM(0, 0, inMemory, 4096), reg.CopyFromVRAM(1, inMemory, 0, 4096), reg.Fence(2, inMemory, 7).WithInterrupt(1),
		reg.Fill(3, 0, 0xdeadbeef, 1<<20), reg.CopyVRAM(4, 4096, 0, 8192), reg.Signal(5, 1, 1), reg.Wait(6, 1, 1), reg.StampTime(7, inMemory),
	), op(opMSIX, 1, 0, 0xfee00000, 5), start, op(opRead, 0, 4, reg.Queue+reg.QHead, 0))
	script(commands(
		reg.CopyToVRAM(0, ^uint64(0), ^uint64(0), ^uint64(0)), reg.CopyFromVRAM(0, 0xfee00000, 0, 64), reg.Delay(0, ^uint64(0)),
		reg.CopyToVRAM(0, 0, inMemory, 1<<30), reg.CopyToVRAM(0, 0, guestBAR64, 4096), reg.Kernel(0, reg.Launch{}),
	), start, start, op(opReset, 0, 0, 0, 0))
	script(nil, op(opConfig, 0, 0, cfgspace.OffCommand, 0), op(opWrite, 0, 7, 0, 1), op(opConfig, 0, 0, cfgspace.OffBAR0, ^uint64(0)), op(opRead, 2, 64, 1<<20, 0))
	script(commands(reg.CopyToVRAM(0, 0, guestMemory, 64<<10)), start, op(opMap, 1, 0, 0, 0), start, op(opMap, 0, 0, 0, 0))
	script(nil, op(opIRQ, 2, 0x24, 0, 16), op(opIRQ, 0, 0x24, 0, 1), op(opIRQ, 4, 0xffff, ^uint32(0), ^uint64(0)))
	// Few seeds: a worker executes them all before the first input of its own.
	const together = 8
	for from := uint32(0); from < reg.CountersEnd; from += 8 * together {
		var ops [][]byte
		for at := from; at < min(from+8*together, reg.CountersEnd); at += 8 {
			ops = append(ops, op(opWrite, 0, 7, at, ^uint64(0)), op(opSync, 0, 2, at+1, 0x5a5a), op(opRead, 0, 8, at, 0))
		}
		script(nil, ops...)
	}
	for from := uint32(0); from < reg.QueueStride; from += 4 * together {
		var ops [][]byte
		for at := from; at < from+4*together; at += 4 {
			ops = append(ops, op(opQueue, 0, 3, at, ^uint64(0)), op(opQueue, 0, 3, reg.QControl, 1), op(opQueue, 0, 3, reg.QDoorbell, ^uint64(0)))
		}
		script(nil, ops...)
	}

	r := newCluster(f, options{timeout: 100 * time.Millisecond})
	r.attachSlowly(0, 0, 0, 0)
	// Every answer that an input waits for takes milliseconds where processors are busy. So a
	// guest lives on with its connection while nothing but its device was changed, which finish
	// restores.
	g := &fuzzedGuest{stale: true}
	f.Cleanup(func() { check(f, g.close()) })
	f.Fuzz(func(t *testing.T, ops uint8, b []byte) {
		if g.stale {
			check(t, g.close())
			g = newFuzzedGuest(t, r.hosts[0].vm.Socket(0))
		}
		g.begin(t)
		defer func() { g.stale = g.stale || t.Failed() }()
		for ; ops > 0 && len(b) >= scriptOp; ops-- {
			g.do(b[:scriptOp], b[scriptOp:])
			b = b[scriptOp:]
		}
		g.finish()
		if s := r.hosts[0].Observe().Slots[0].Binding; s.GetState() != attached {
			t.Fatalf("the binding is %v: %s", s.GetState(), s.GetDetail())
		}
	})
}

// fuzzedGuest is a VMM with some shared memory.
type fuzzedGuest struct {
	t      *testing.T
	client *vfiouser.Client // nil: closed
	file   *os.File
	memory []byte
	moved  bool // the BARs may not lie where place puts them
	stale  bool // mappings or interrupts were changed: the next input gets another guest
}

func newFuzzedGuest(t *testing.T, socket string) *fuzzedGuest {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	g := &fuzzedGuest{file: os.NewFile(uintptr(fd), "guest"), moved: true}
	check(t, g.file.Truncate(guestMemorySize))
	if g.memory, err = unix.Mmap(fd, 0, guestMemorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	g.client, err = vfiouser.Dial(t.Context(), socket, vfiouser.ClientConfig{
		Timeout: patience, DMA: vfiouser.DMAFunc(func(_ *vfiouser.Client, r *vfiouser.DMARequest) { r.Reply() }),
	})
	if err != nil {
		t.Fatalf("the server takes no connection: %v", err)
	}
	check(t, g.client.DMAMap(t.Context(), vfiouser.DMAMap{Flags: 3, Addr: guestMemory, Size: guestMemorySize}, g.file))
	return g
}

// close ends the guest. Its device is reset.
func (g *fuzzedGuest) close() error {
	if g.client == nil {
		return nil
	}
	err := errors.Join(g.client.Close(), unix.Munmap(g.memory), g.file.Close())
	g.client = nil
	return err
}

// begin prepares for the next input.
func (g *fuzzedGuest) begin(t *testing.T) {
	g.t = t
	clear(g.memory)
	if g.moved {
		g.place()
	}
}

// place puts the BARs where a guest has them and turns the device on. BARs that nothing has
// moved lie there: the proxy restores them after a reset.
func (g *fuzzedGuest) place() {
	for at, v := range map[int]uint32{
		cfgspace.OffBAR0:                     guestBAR32,
		cfgspace.OffBAR0 + 4*reg.BARVRAM:     guestBAR64 & 0xffff_ffff,
		cfgspace.OffBAR0 + 4*(reg.BARVRAM+1): guestBAR64 >> 32,
		cfgspace.OffBAR0 + 4*reg.BARMSIX:     guestBAR32 + 1<<20,
		cfgspace.OffBAR0 + 4*(reg.BARMSIX+1): 0,
		cfgspace.OffCommand:                  cfgspace.CmdMemory | cfgspace.CmdBusMaster,
	} {
		if g.moved || at == cfgspace.OffCommand {
			g.write(vfiouser.RegionConfig, uint64(at), binary.LittleEndian.AppendUint32(nil, v))
		}
	}
	g.moved = false
}

// write writes and waits; that it is refused is all the same.
func (g *fuzzedGuest) write(region uint32, off uint64, p []byte) {
	g.allowed(g.client.RegionWrite(context.Background(), region, off, p))
}

// allowed takes every answer, but that there is none.
func (g *fuzzedGuest) allowed(err error) {
	g.t.Helper()
	var refused *vfiouser.RemoteError
	if err != nil && !errors.As(err, &refused) && g.client.Err() != nil {
		g.t.Fatalf("the connection is lost: %v", err)
	}
}

var guestRegions = []struct {
	index uint32
	size  uint64
}{
	{reg.BARRegisters, reg.RegistersSize},
	{reg.BARMSIX, 16 << 10},
	{reg.BARVRAM, 32 << 20},
	{vfiouser.RegionConfig, 4096},
	{1, 4096}, // the upper half of nothing
	{^uint32(0), 64},
}

// do does one operation. The ring holds what comes behind it in the script.
func (g *fuzzedGuest) do(b, rest []byte) {
	choice, off, value := binary.LittleEndian.Uint16(b[2:]), uint64(binary.LittleEndian.Uint32(b[4:])), binary.LittleEndian.Uint64(b[8:])
	region := guestRegions[int(b[1])%len(guestRegions)]
	data := b[8:][:1+choice%8]
	queue := reg.Queue + uint64(b[1]%8)*reg.QueueStride
	ctx, kind := context.Background(), b[0]%opCount
	g.moved = g.moved || kind == opConfig || kind <= opSync && region.index == vfiouser.RegionConfig
	g.stale = g.stale || kind == opMap || kind == opIRQ
	switch kind {
	case opWrite:
		g.allowed(g.client.PostWrite(region.index, off%region.size, data))
	case opSync:
		g.write(region.index, off%region.size, data)
	case opRead:
		g.allowed(g.client.RegionRead(ctx, region.index, off%region.size, make([]byte, 1+choice%64)))
	case opQueue:
		g.allowed(g.client.PostWrite(reg.BARRegisters, queue+off%reg.QueueStride, data))
	case opConfig:
		g.write(vfiouser.RegionConfig, off%4096&^3, b[8:12])
	case opRing:
		copy(g.memory, rest)
		for _, w := range []struct{ at, v uint64 }{
			{reg.QControl, 0}, {reg.QRingBase, guestMemory}, {reg.QRingSize, uint64(choice)}, {reg.QControl, reg.QControlEnable}, {reg.QDoorbell, value},
		} {
			n := 4
			if w.at == reg.QRingBase {
				n = 8
			}
			g.allowed(g.client.PostWrite(reg.BARRegisters, queue+w.at, binary.LittleEndian.AppendUint64(nil, w.v)[:n]))
		}
	case opMap:
		if b[1]%2 == 1 {
			g.allowed(g.client.DMAUnmap(ctx, guestMemory+off, guestMemorySize+value))
		} else {
			g.allowed(g.client.DMAMap(ctx, vfiouser.DMAMap{Flags: uint32(choice), Offset: off, Addr: guestMemory, Size: guestMemorySize + value}, g.file))
		}
	case opIRQ:
		g.allowed(g.client.SetIRQs(ctx, vfiouser.IRQSet{Flags: uint32(choice), Index: uint32(b[1]), Start: uint32(off), Count: uint32(value % 64)}))
	case opReset:
		g.allowed(g.client.Reset(ctx))
	case opMSIX:
		p := binary.LittleEndian.AppendUint64(nil, off|value>>32<<32)
		p = binary.LittleEndian.AppendUint64(p, value&0xffff_ffff)
		g.allowed(g.client.PostWrite(reg.BARMSIX, uint64(b[1]%16)*16, p))
	}
}

// finish resets the device, which must be as good as new then.
func (g *fuzzedGuest) finish() {
	g.t.Helper()
	// The power state outlives a reset request while the function is asleep: the
	// guest wakes it, as the last step of every reset.
	g.allowed(g.client.Reset(context.Background()))
	g.place()
	var id [4]byte
	for limit := time.Now().Add(patience); ; {
		g.allowed(g.client.RegionRead(context.Background(), reg.BARRegisters, reg.ID, id[:]))
		if binary.LittleEndian.Uint32(id[:]) == reg.Magic {
			return
		}
		if time.Now().After(limit) {
			g.t.Fatalf("the ID register reads %x after a reset", id)
		}
	}
}
