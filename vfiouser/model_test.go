package vfiouser

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/leaktest"
)

// vmm is a VMM that sends anything, beside a plain account of what the server must have and
// answer. It sends requests in batches, each of which ends with a reset: the device answers by
// then what it has held.
type vmm struct {
	*rawPeer
	r    *rand.Rand
	conn *Conn

	mem    [NumRegions][]byte
	maps   []Mapping // by address
	ram    [][]byte  // content of each file
	fileOf map[uint64]int
	files  []*os.File
	events []*os.File
	fired  []uint64 // of each event
	// resample is given to the server to unmask INTx, and never signalled.
	resample *os.File
	irqs     [NumIRQs][]modelVector

	stream  []byte // of the batch, not sent yet
	want    map[uint16]modelReply
	sent    int
	dropped int // requests without a reply
}

// modelVector is an interrupt vector.
type modelVector struct {
	event           int // -1: none
	masked, pending bool
}

// modelReply is the reply that a request must have.
type modelReply struct {
	cmd   uint16
	errno unix.Errno
	body  []byte
}

const (
	modelPage  = 4096
	modelPages = 24 // of bus addresses
	modelFiles = 2
	filePages  = 8
	einval     = unix.EINVAL
)

// orderless answers accesses late and in any order. It runs in the goroutine of the connection.
type orderless struct {
	r    *rand.Rand
	held []*Access
}

func (o *orderless) access(_ *Conn, a *Access) {
	if o.r.IntN(3) == 0 {
		a.Reply()
		return
	}
	if o.held = append(o.held, a); len(o.held) > 6 {
		o.answer()
	}
}

func (o *orderless) answer() {
	i := o.r.IntN(len(o.held))
	a := o.held[i]
	o.held = slices.Delete(o.held, i, i+1)
	a.Reply()
}

func (o *orderless) reset(done func(error)) {
	for len(o.held) > 0 {
		o.answer()
	}
	done(nil)
}

// TestServerAgainstModel sends requests of all kinds, right and wrong, many at once, cut
// anywhere, to a device that answers in any order. Each reply, the memory of the device, the
// mappings and the interrupts are those of a plain account.
func TestServerAgainstModel(t *testing.T) {
	before := leaktest.Descriptors(t)
	for seed := range uint64(6) {
		runModel(t, seed)
	}
	if n := leaktest.Descriptors(t); n > before+1 { // one of the runtime
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

func runModel(t *testing.T, seed uint64) {
	t.Helper()
	f := serve(t)
	w := &vmm{r: rand.New(rand.NewPCG(seed, 1)), want: map[uint16]modelReply{}, fileOf: map[uint64]int{}}
	f.dev.set(func(d *testDevice) {
		o := &orderless{r: rand.New(rand.NewPCG(seed, 2))}
		d.onAccess, d.onReset = o.access, o.reset
		for i := range w.mem {
			w.mem[i] = slices.Clone(d.mem[i])
		}
	})
	for range modelFiles {
		file, b := memfd(t, filePages*modelPage)
		w.files, w.ram = append(w.files, file), append(w.ram, b)
	}
	for range 5 {
		w.events = append(w.events, event(t))
	}
	w.resample = event(t)
	w.fired = make([]uint64, len(w.events))
	for i, n := range f.cfg.IRQs {
		w.irqs[i] = make([]modelVector, n)
		for v := range w.irqs[i] {
			w.irqs[i][v].event = -1
		}
	}
	w.rawPeer, w.conn = f.connect()
	for range 60 {
		for range 1 + w.r.IntN(12) {
			w.request()
		}
		w.ask(t, 13, nil)
		w.check(t, f)
		if t.Failed() {
			t.Fatalf("seed %d, after %d requests", seed, w.sent)
		}
	}
	_ = w.Close()
	<-f.dev.disconnected
	_ = f.Close()
	for _, file := range slices.Concat(w.files, w.events, []*os.File{w.resample}) {
		_ = file.Close()
	}
}

// put adds a request to the stream; a part of the stream goes out now and then. Descriptors go
// with the first bytes of their message, alone.
func (w *vmm) put(cmd uint16, body []byte, reply modelReply, fds ...int) {
	w.sent++
	flags := uint32(0)
	if w.r.IntN(6) == 0 {
		flags = 0x10
		w.dropped++
	}
	b := w.message(cmd, flags, body)
	if flags == 0 {
		reply.cmd = cmd
		w.want[w.id] = reply
	}
	if len(fds) > 0 {
		w.flush(len(w.stream))
		n := 1 + w.r.IntN(len(b))
		w.send(b[:n], fds...)
		b = b[n:]
	}
	w.stream = append(w.stream, b...)
	if w.r.IntN(3) == 0 {
		w.flush(w.r.IntN(len(w.stream) + 1))
	}
}

func (w *vmm) flush(n int) {
	if n > 0 {
		w.send(w.stream[:n])
		w.stream = w.stream[n:]
	}
}

// ask ends a batch with a request, and takes all replies.
func (w *vmm) ask(t *testing.T, cmd uint16, body []byte) {
	t.Helper()
	b := w.message(cmd, 0, body)
	w.want[w.id] = modelReply{cmd: cmd}
	w.stream = append(w.stream, b...)
	w.flush(len(w.stream))
	for len(w.want) > 0 {
		r := w.recv()
		want, ok := w.want[r.id]
		delete(w.want, r.id)
		flags := uint32(1)
		if want.errno != 0 {
			flags = 0x21
		}
		if !ok || r.cmd != want.cmd || r.errno != want.errno || r.flags != flags || !bytes.Equal(r.body, want.body) {
			t.Fatalf("reply %d: command %d, %v, flags %#x, % .80x; want command %d, %v, % .80x (asked: %v)",
				r.id, r.cmd, r.errno, r.flags, r.body, want.cmd, want.errno, want.body, ok)
		}
	}
}

// request makes one request.
func (w *vmm) request() {
	fail := func(errno unix.Errno) modelReply { return modelReply{errno: errno} }
	switch w.r.IntN(20) {
	case 0, 1, 2:
		w.read()
	case 3, 4, 5:
		w.write()
	case 6:
		w.multi()
	case 7, 8:
		w.dmaMap()
	case 9, 10:
		w.dmaUnmap()
	case 11, 12, 13, 14, 15:
		w.setIRQs()
	case 16:
		w.put(1, []byte(qemuVersion), fail(einval)) // again
	case 17:
		index := w.r.IntN(7)
		if index >= NumIRQs {
			w.put(7, le(16, 0, index, 0), fail(einval))
			return
		}
		w.put(7, le(16, 0, index, 0), modelReply{body: le(16, irqFlags[index], index, len(w.irqs[index]))})
	case 18:
		cmd := []uint16{0, 11, 12, 14, 17, 18, 19, 300, 16}[w.r.IntN(9)]
		errno := unix.ENOSYS
		if cmd == 16 {
			errno = unix.ENOTTY
		}
		w.put(cmd, make([]byte, w.r.IntN(40)), fail(errno), w.someFDs(w.r.IntN(3))...)
	case 19:
		w.put(13, nil, modelReply{})
	}
}

// someFDs returns descriptors that a message does not need.
func (w *vmm) someFDs(n int) (fds []int) {
	for range n {
		fds = append(fds, mustFD(w.tb, w.files[w.r.IntN(modelFiles)]))
	}
	return fds
}

// place returns a range of a region, and whether it lies in it.
func (w *vmm) place(write bool, most int) (region int, off uint64, n int, ok bool) {
	region = []int{0, 2, 7, 7, 0, 6, 1, 8, 9, 1 << 20}[w.r.IntN(10)]
	size := 4096
	if region < NumRegions && len(w.mem[region]) > 0 {
		size, ok = len(w.mem[region]), !write || region != int(RegionROM)
	}
	off, n = uint64(w.r.IntN(size+1)), w.r.IntN(most+1)
	switch w.r.IntN(8) {
	case 0:
		off = uint64(size)
	case 1:
		off = ^uint64(0) - uint64(w.r.IntN(8))
	case 2:
		off, n = 0, min(size, most)
	}
	return region, off, n, ok && off <= uint64(size) && uint64(n) <= uint64(size)-off
}

func (w *vmm) read() {
	region, off, n, ok := w.place(false, 4096)
	if region == int(RegionConfig) && off == 0 && n >= 256 {
		n = 255 // the first longer one is another image
	}
	if w.r.IntN(30) == 0 {
		n, ok = 2<<20, false
	}
	reply := modelReply{errno: einval}
	if ok {
		reply = modelReply{body: access(region, off, n, w.mem[region][off:off+uint64(n)]...)}
	}
	w.put(9, access(region, off, n), reply)
}

func (w *vmm) write() {
	region, off, n, ok := w.place(true, []int{8, 64, 12 << 10}[w.r.IntN(3)])
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(w.r.Uint32())
	}
	count := n
	if w.r.IntN(8) == 0 {
		count, ok = n+1-2*w.r.IntN(2), false
	}
	reply := modelReply{errno: einval}
	if ok {
		reply = modelReply{body: access(region, off, n)}
		copy(w.mem[region][off:], data)
	}
	w.put(10, access(region, off, count, data...), reply)
}

func (w *vmm) multi() {
	n, ok := w.r.IntN(5), true
	body := le(uint64(n))
	type change struct {
		region int
		off    uint64
		data   []byte
	}
	var changes []change
	for range n {
		region, off, count, in := w.place(true, 8)
		if w.r.IntN(4) > 0 { // or few would be right as a whole
			region, off, in = 2, uint64(w.r.IntN(testBAR2-8)), true
		}
		if w.r.IntN(20) == 0 {
			count, in = 9, false
		}
		data := binary.LittleEndian.AppendUint64(nil, w.r.Uint64())
		body = append(body, le(off, region, count, data)...)
		if ok = ok && in; in {
			changes = append(changes, change{region, off, data[:count]})
		}
	}
	if w.r.IntN(8) == 0 {
		body, ok = body[:len(body)-1-w.r.IntN(7)], false
	}
	if !ok {
		w.put(15, body, modelReply{errno: einval})
		return
	}
	for _, c := range changes {
		copy(w.mem[c.region][c.off:], c.data)
	}
	w.put(15, body, modelReply{body: le(uint64(n))})
}

func (w *vmm) dmaMap() {
	x := Mapping{
		Addr: uint64(w.r.IntN(modelPages) * modelPage), Size: uint64((1 + w.r.IntN(4)) * modelPage), Offset: uint64(w.r.IntN(filePages) * modelPage),
	}
	if w.r.IntN(6) == 0 {
		x.Addr = ^uint64(0) &^ (modelPage - 1) // the end of the address space
		x.Size = modelPage * uint64(1+w.r.IntN(2))
	}
	flags := w.r.IntN(4)
	x.Readable, x.Writable = flags&1 != 0, flags&2 != 0
	file := w.r.IntN(modelFiles)
	var fds []int
	count := []int{0, 1, 1, 1, 1, 2}[w.r.IntN(6)]
	for range count {
		fds = append(fds, mustFD(w.tb, w.files[file]))
	}
	x.InPlace = count == 1
	var errno unix.Errno
	odd := w.r.IntN(10)
	switch {
	case x.Addr+x.Size-1 < x.Addr, count == 2, flags == 0:
		errno = einval
	case odd == 0 && x.InPlace: // no memory
		fds, errno = []int{mustFD(w.tb, w.events[0])}, unix.ENODEV
	case x.InPlace && x.Offset+x.Size > filePages*modelPage:
		errno = einval
	case slices.ContainsFunc(w.maps, func(m Mapping) bool { return m.Addr <= x.last() && x.Addr <= m.last() }):
		errno = unix.EEXIST
	default:
		i, _ := slices.BinarySearchFunc(w.maps, x, func(a, b Mapping) int {
			if a.Addr < b.Addr {
				return -1
			}
			return 1
		})
		w.maps = slices.Insert(w.maps, i, x)
		w.fileOf[x.Addr] = file
	}
	w.put(2, dmaMap(flags, x.Offset, x.Addr, x.Size), modelReply{errno: errno}, fds...)
}

func (w *vmm) dmaUnmap() {
	addr, size := uint64(w.r.IntN(modelPages)*modelPage), uint64((1+w.r.IntN(8))*modelPage)
	flags := 0
	switch k := w.r.IntN(12); {
	case k == 0:
		flags, addr, size = 2, 0, 0
	case k == 1:
		flags = 2
	case k == 2:
		flags = 1
	case k == 3:
		size = 0
	case k == 4:
		addr = ^uint64(0) &^ (modelPage - 1)
		size = modelPage
	case k < 9 && len(w.maps) > 0:
		m := w.maps[w.r.IntN(len(w.maps))]
		addr, size = m.Addr, m.Size
	}
	all := flags == 2 && addr == 0 && size == 0
	var left []Mapping
	ok := all || flags == 0 && size > 0 && addr+size-1 >= addr
	for _, m := range w.maps {
		in := all || m.Addr >= addr && m.last() <= addr+size-1
		if !in {
			left = append(left, m)
		}
		ok = ok && (in || m.last() < addr || m.Addr > addr+size-1)
	}
	body := le(24, flags, addr, size)
	if !ok {
		w.put(3, body, modelReply{errno: einval})
		return
	}
	w.maps = left
	w.put(3, body, modelReply{body: body})
}
