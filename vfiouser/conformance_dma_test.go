package vfiouser

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/leaktest"
)

var dmaTests = []conformance{
	{"F_churn_of_SeaBIOS", func(t *testing.T) {
		p, c := serve(t).connect()
		mem, b := memfd(t, 4<<20)
		id := mustFD(t, mem)
		for i := range 12 {
			p.ok(2, dmaMap(3, 0, 0, 4<<20), id)
			p.ok(3, dmaUnmap(0, 4<<20))
			p.ok(2, dmaMap(3, 0, 0, 0xc0000), id)
			p.ok(2, dmaMap(1, 0xc0000, 0xc0000, 0x40000), id)
			p.ok(2, dmaMap(3, 0x100000, 0x100000, 3<<20), id)
			if err := c.Memory().Write(0xbffff, []byte{byte(i)}); err != nil || b[0xbffff] != byte(i) {
				t.Fatal(err)
			}
			if err := c.Memory().Write(0xbffff, []byte{1, 2}); !errors.Is(err, ErrPermission) || b[0xbffff] != byte(i) {
				t.Fatalf("write into the read-only part: %v", err)
			}
			var got [0x40002]byte
			if err := c.Memory().Read(0xbffff, got[:]); err != nil || got[0] != byte(i) {
				t.Fatalf("read over three maps: %v", err)
			}
			r := p.ok(3, append(le(24, 2), make([]byte, 16)...))
			if len(r.body) != 24 || len(c.Memory().Mappings()) != 0 {
				t.Fatalf("unmap all: % x, %d left", r.body, len(c.Memory().Mappings()))
			}
		}
		if n := c.Memory().Refused(); n != 12 {
			t.Errorf("%d refused accesses counted, want 12", n)
		}
	}},
	{"F_unmap_reply_is_the_request", func(t *testing.T) {
		p, _ := serve(t).connect()
		p.ok(2, dmaMap(3, 0, 0x10000, 0x1000))
		if r := p.ok(3, dmaUnmap(0x10000, 0x1000)); !bytes.Equal(r.body, dmaUnmap(0x10000, 0x1000)) {
			t.Errorf("% x", r.body)
		}
	}},
	{"F_map_reply_is_a_header", func(t *testing.T) {
		p, _ := serve(t).connect()
		if r := p.ok(2, dmaMap(3, 0, 0, 0x1000)); len(r.body) != 0 {
			t.Errorf("% x", r.body)
		}
	}},
	{"F_offset_arithmetic", func(t *testing.T) {
		p, c := serve(t).connect()
		mem, b := memfd(t, 1<<20)
		id := mustFD(t, mem)
		for i, off := range []uint64{0, 4096, 0x80000, 1<<20 - 4096, 0x80200} { // the last is not aligned
			addr := uint64(i+1) << 32
			b[off], b[off+511] = byte(i+1), byte(i+101)
			p.ok(2, dmaMap(3, off, addr, 512), id)
			got := make([]byte, 512)
			if err := c.Memory().Read(addr, got); err != nil || got[0] != byte(i+1) || got[511] != byte(i+101) {
				t.Errorf("offset %#x: %d %d %v", off, got[0], got[511], err)
			}
			if err := c.Memory().Read(addr, make([]byte, 513)); !errors.Is(err, ErrUnmapped) {
				t.Errorf("beyond the end: %v", err)
			}
			if err := c.Memory().Read(addr-1, make([]byte, 2)); !errors.Is(err, ErrUnmapped) {
				t.Errorf("before the start: %v", err)
			}
		}
	}},
	{"F_maps_refused", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.MaxMaps = 3 })
		p, c := f.connect()
		mem, _ := memfd(t, 8192)
		id := mustFD(t, mem)
		p.ok(2, dmaMap(3, 0, 0x10000, 0x2000), id)
		for _, r := range [][2]uint64{{0x10000, 0x2000}, {0xf000, 0x1001}, {0x11fff, 1}, {0, 1 << 40}, {0x10800, 0x10}} {
			p.wantErr(unix.EEXIST, 2, dmaMap(3, 0, r[0], r[1]))
		}
		p.wantErr(unix.EINVAL, 2, dmaMap(3, 0, 0x20000, 0))
		p.wantErr(unix.EINVAL, 2, dmaMap(3, 0, math.MaxUint64, 2))
		p.wantErr(unix.EINVAL, 2, dmaMap(0, 0, 0x20000, 0x1000))
		p.wantErr(unix.EINVAL, 2, dmaMap(3, 4096, 0x20000, 4097), id) // longer than the file
		p.wantErr(unix.EINVAL, 2, dmaMap(3, math.MaxUint64-4095, 0x20000, 4096), id)
		p.wantErr(unix.EINVAL, 2, dmaMap(3, 0, 0x20000, 0x1000), id, id)
		p.wantErr(unix.ENODEV, 2, dmaMap(3, 0, 0x20000, 0x1000), mustFD(t, event(t))) // mmap's own answer
		p.ok(3, dmaUnmap(0x20000, 0x1000))                                            // QEMU does, behind an IOMMU
		p.wantErr(unix.EINVAL, 3, dmaUnmap(0x10000, 0x1000))
		p.wantErr(unix.EINVAL, 3, dmaUnmap(0x11000, 0x1000))
		p.wantErr(unix.EINVAL, 3, dmaUnmap(0x10000, 0))
		p.wantErr(unix.EINVAL, 3, le(24, 1, uint64(0x10000), uint64(0x2000)))
		p.wantErr(unix.EINVAL, 3, le(24, 2, uint64(0x10000), uint64(0x2000)))
		p.ok(2, dmaMap(3, 0, math.MaxUint64-4095, 4096))
		p.ok(2, dmaMap(3, 0, 0, 4096))
		p.wantErr(unix.ENOSPC, 2, dmaMap(3, 0, 0x20000, 0x1000))
		f.dev.set(func(d *testDevice) { d.mapErr = unix.EPERM })
		p.ok(3, dmaUnmap(0, 4096))
		p.wantErr(unix.EPERM, 2, dmaMap(3, 0, 0, 4096))
		if n := len(c.Memory().Mappings()); n != 2 {
			t.Errorf("%d mappings", n)
		}
		f.dev.set(func(d *testDevice) {
			last := d.refused[len(d.refused)-2:]
			if !errors.Is(last[0], unix.ENOSPC) || !errors.Is(last[1], unix.EPERM) {
				t.Errorf("the device was told %v", d.refused)
			}
		})
		p.ok(3, dmaUnmap(0, 1<<63)) // a range that holds a whole map
	}},
	{"F_write_needs_a_writable_descriptor", func(t *testing.T) {
		p, _ := serve(t).connect()
		mem, _ := memfd(t, 4096)
		leaktest.NeedProc(t)
		ro, err := unix.Open("/proc/self/fd/"+itoa(mustFD(t, mem)), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(ro)
		p.wantErr(unix.EACCES, 2, dmaMap(3, 0, 0, 4096), ro)
		p.ok(2, dmaMap(1, 0, 0, 4096), ro)
	}},
	{"F_read_only_maps_are_not_written", func(t *testing.T) {
		p, c := serve(t).connect()
		mem, b := memfd(t, 4096)
		p.ok(2, dmaMap(1, 0, 0, 4096), mustFD(t, mem)) // the descriptor could be written
		p.ok(2, dmaMap(1, 0, 4096, 4096))              // a ROM, as QEMU maps it
		for _, addr := range []uint64{0, 4096} {
			if err := c.DMAWrite(addr, []byte{1, 2, 3, 4}, nil); !errors.Is(err, ErrPermission) {
				t.Errorf("write at %#x: %v", addr, err)
			}
		}
		if got := make([]byte, 4); c.Memory().Read(0, got) != nil || !bytes.Equal(b[:4], got) || b[0] != 0 {
			t.Errorf("memory % x", b[:4])
		}
	}},
	{"F_own_BAR_by_DMA", func(t *testing.T) {
		// The VMM serves the device's read of its own BAR by asking the device.
		f := serve(t)
		p, c := f.connect()
		p.ok(10, access(0, 8, 4, 5, 6, 7, 8))
		p.ok(2, dmaMap(3, 0, 0xc0000000, testBAR0))
		got, done := make([]byte, 4), make(chan error, 1)
		if err := c.DMARead(0xc0000008, got, into(done)); err != nil {
			t.Fatal(err)
		}
		request := p.recv()
		p.send(p.message(10, 0x10, access(0, 12, 4, 1, 1, 1, 1))) // and the VMM posts a write
		inner := p.ok(9, access(0, 8, 4))
		p.reply(request, 0, append(le(uint64(0xc0000008), uint64(4)), inner.body[16:]...))
		if err := waitErr(t, done); err != nil || !bytes.Equal(got, []byte{5, 6, 7, 8}) {
			t.Errorf("% x, %v", got, err)
		}
	}},
	{"F_truncated_file_is_no_crash", func(t *testing.T) {
		p, c := serve(t).connect()
		mem, _ := memfd(t, 1<<20)
		p.ok(2, dmaMap(3, 0, 0, 1<<20), mustFD(t, mem))
		if err := mem.Truncate(4096); err != nil {
			t.Fatal(err)
		}
		for name, try := range map[string]func() error{
			"read":  func() error { return c.Memory().Read(0x8000, make([]byte, 4096)) },
			"write": func() error { return c.Memory().Write(0x8000, make([]byte, 3)) },
			"view": func() error {
				return c.Memory().View(0x8000, 8, true, func(b [][]byte) error { b[0][0] = 1; return nil })
			},
		} {
			if err := try(); !errors.Is(err, ErrFault) {
				t.Errorf("%s: %v, want a fault", name, err)
			}
		}
		if err := c.Memory().Write(0, []byte{1}); err != nil {
			t.Error(err)
		}
		p.ok(3, dmaUnmap(0, 1<<20))
	}},
	{"F_unmap_waits_for_accesses", func(t *testing.T) {
		p, c := serve(t).connect()
		mem, _ := memfd(t, 8192)
		p.ok(2, dmaMap(3, 0, 0, 4096), mustFD(t, mem))
		p.ok(2, dmaMap(3, 4096, 4096, 4096), mustFD(t, mem))
		inside, leave := make(chan [][]byte), make(chan struct{})
		viewed := make(chan error, 1)
		go func() {
			viewed <- c.Memory().View(4000, 200, true, func(parts [][]byte) error {
				inside <- parts
				<-leave
				parts[1][0] = 7 // would fault if the unmap had not waited
				return nil
			})
		}()
		parts := <-inside
		if len(parts) != 2 || len(parts[0]) != 96 || len(parts[1]) != 104 {
			t.Errorf("view of %d parts", len(parts))
		}
		p.send(p.message(3, 0, dmaUnmap(4096, 4096)))
		_ = p.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := p.Read(make([]byte, 1)); err == nil {
			t.Error("the unmap was answered during an access")
		}
		close(leave)
		if r := p.recv(); r.errno != 0 {
			t.Error(r.errno)
		}
		must(t, waitErr(t, viewed))
	}},
	{"F_write_visible_before_read_completes", func(t *testing.T) {
		f := serve(t)
		mem, b := memfd(t, 4096)
		f.dev.set(func(d *testDevice) {
			var n uint32
			d.onAccess = func(c *Conn, a *Access) {
				n++
				w := binary.LittleEndian.AppendUint32(nil, n)
				go func() { // another goroutine, as a proxy's is
					_ = c.DMAWrite(0x100, w, nil)
					copy(a.Data, w)
					a.Reply()
				}()
			}
		})
		p, _ := f.connect()
		p.ok(2, dmaMap(3, 0, 0, 4096), mustFD(t, mem))
		stale := 0
		for range 2000 {
			if r := p.ok(9, access(0, 0, 4)); !bytes.Equal(r.body[16:], b[0x100:0x104]) {
				stale++
			}
		}
		if stale != 0 {
			t.Errorf("%d of 2000 reads completed before the write was visible", stale)
		}
	}},
	{"F_messages_of_16_KiB", func(t *testing.T) {
		f := serve(t)
		p, c := f.connect()
		p.ok(2, dmaMap(3, 0, 0, 1<<20))
		guest := make([]byte, 1<<20)
		for i := range guest {
			guest[i] = byte(i * 7)
		}
		got, done := make([]byte, 300_001), make(chan error, 1)
		if err := c.DMARead(5, got, into(done)); err != nil {
			t.Fatal(err)
		}
		for sum := 0; sum < len(got); {
			cmd, addr, n := p.answerDMA(guest)
			if cmd != 11 || addr != uint64(5+sum) || n > 16<<10 {
				t.Fatalf("command %d, %d bytes at %d", cmd, n, addr)
			}
			sum += n
		}
		if err := waitErr(t, done); err != nil || !bytes.Equal(got, guest[5:5+len(got)]) {
			t.Errorf("read: %v", err)
		}
		data := bytes.Repeat([]byte{0xab}, 100_000)
		if err := c.DMAWrite(1000, data, into(done)); err != nil {
			t.Fatal(err)
		}
		for sum := 0; sum < len(data); {
			_, _, n := p.answerDMA(guest)
			sum += n
		}
		if err := waitErr(t, done); err != nil || !bytes.Equal(guest[1000:101_000], data) {
			t.Errorf("write: %v", err)
		}
		if err := c.DMARead(7, nil, into(done)); err != nil || waitErr(t, done) != nil {
			t.Errorf("no bytes: %v", err)
		}
	}},
	{"F_no_message_while_an_access_is_open", func(t *testing.T) {
		f := serve(t)
		hold := f.dev.holding(0)
		p, c := f.connect()
		p.ok(2, dmaMap(3, 0, 0, 1<<20))
		guest := make([]byte, 1<<20)
		p.send(p.message(9, 0, access(0, 0, 4)))
		first := p.id
		p.send(p.message(9, 0, access(0, 4, 4)))
		x, y := <-hold, <-hold
		done := make(chan error, 3)
		for i := range 2 {
			if err := c.DMAWrite(uint64(i), []byte{byte(i + 1)}, into(done)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.SignalMSI(0xfee01000, 0x4041, into(done)); err != nil {
			t.Fatal(err)
		}
		y.Reply() // one is still open
		if r := p.recv(); r.id != first+1 {
			t.Fatalf("%+v before the access was answered", r)
		}
		x.Reply()
		if r := p.recv(); r.id != first {
			t.Fatalf("%+v instead of the answer", r)
		}
		p.answerDMA(guest)
		p.answerDMA(guest)
		r := p.recv()
		if r.cmd != 12 || !bytes.Equal(r.body, le(uint64(0xfee01000), uint64(4), 0x4041)) {
			t.Errorf("interrupt message %+v", r)
		}
		p.reply(r, 0, r.body[:16])
		for range 3 {
			if err := waitErr(t, done); err != nil {
				t.Error(err)
			}
		}
		if guest[0] != 1 || guest[1] != 2 {
			t.Error("wrong data")
		}
	}},
	{"F_replies_are_read_while_an_access_is_open", func(t *testing.T) {
		f := serve(t)
		hold := f.dev.holding(0)
		p, c := f.connect()
		p.ok(2, dmaMap(3, 0, 0, 1<<20))
		done := make(chan error, 1)
		got := make([]byte, 4)
		if err := c.DMARead(0, got, into(done)); err != nil {
			t.Fatal(err)
		}
		r := p.recv()
		p.send(p.message(9, 0, access(0, 0, 4))) // a read of our own BAR by P2P, or a CPU's
		a := <-hold
		p.reply(r, 0, append(r.body[:16:16], 1, 2, 3, 4))
		if err := waitErr(t, done); err != nil || !bytes.Equal(got, []byte{1, 2, 3, 4}) {
			t.Errorf("% x %v", got, err)
		}
		a.Reply()
		p.recv()
	}},
	{"F_errors_of_messages", func(t *testing.T) {
		f := serve(t)
		p, c := f.connect()
		p.ok(2, dmaMap(3, 0, 0, 1<<20))
		done := make(chan error, 1)
		for name, answer := range map[string]struct {
			errno unix.Errno
			body  []byte
		}{
			"ENODEV, as with Bus Master off": {unix.ENODEV, nil},
			"E2BIG":                          {unix.E2BIG, nil},
			"short":                          {0, le(uint64(0), uint64(8), 1)},
			"header only":                    {0, nil},
			"long":                           {0, append(le(uint64(0), uint64(8)), make([]byte, 9)...)},
		} {
			if err := c.DMARead(0, make([]byte, 8), into(done)); err != nil {
				t.Fatal(err)
			}
			p.reply(p.recv(), answer.errno, answer.body)
			err := waitErr(t, done)
			if err == nil || answer.errno != 0 && !errors.Is(err, answer.errno) {
				t.Errorf("%s: %v", name, err)
			}
		}
		// After an error the rest of a long one is not sent.
		if err := c.DMAWrite(0, make([]byte, 1<<20), into(done)); err != nil {
			t.Fatal(err)
		}
		for range dmaWindow {
			p.reply(p.recv(), unix.ENODEV, nil)
		}
		if err := waitErr(t, done); !errors.Is(err, unix.ENODEV) {
			t.Error(err)
		}
		p.ok(4, le(16, 0, 0, 0))
	}},
	{"F_unmapped_is_refused_and_counted", func(t *testing.T) {
		f := serve(t)
		p, c := f.connect()
		p.ok(2, dmaMap(1, 0, 0x1000, 0x1000))
		never := func(error) { t.Error("done was called") }
		for name, err := range map[string]error{
			"no map": c.DMARead(0x5000, make([]byte, 4), never), "over the end": c.DMARead(0x1fff, make([]byte, 2), never),
			"wrap": c.DMARead(math.MaxUint64, make([]byte, 2), never),
		} {
			if !errors.Is(err, ErrUnmapped) {
				t.Errorf("%s: %v", name, err)
			}
		}
		err := c.DMAWrite(0x1000, make([]byte, 4), never)
		if m := new(MemoryError); !errors.As(err, &m) || m.Addr != 0x1000 || !m.Write || !errors.Is(err, ErrPermission) {
			t.Errorf("read-only: %v", err)
		}
		if n := f.Stats().Refused; n != 4 {
			t.Errorf("%d refused, want 4", n)
		}
		// Neither is a refusal: the caller has another way.
		if m := c.Memory(); m.TryRead(0x5000, make([]byte, 4)) || m.TryWrite(0x5000, make([]byte, 4)) {
			t.Error("unmapped memory was read or written")
		}
		if err := c.Memory().Read(0x1000, make([]byte, 4)); !errors.Is(err, ErrNoDescriptor) {
			t.Errorf("without a descriptor: %v", err)
		}
		if n := f.Stats().Refused; n != 4 {
			t.Errorf("%d refused after accesses with another way, want 4", n)
		}
	}},
	{"F_unmap_ends_queued_messages", func(t *testing.T) {
		f := serve(t)
		hold := f.dev.holding(0)
		p, c := f.connect()
		p.ok(2, dmaMap(3, 0, 0, 4096))
		p.send(p.message(9, 0, access(0, 0, 4)))
		a := <-hold
		done := make(chan error, 1)
		if err := c.DMAWrite(0, []byte{1}, into(done)); err != nil {
			t.Fatal(err)
		}
		p.ok(3, dmaUnmap(0, 4096))
		a.Reply()
		p.recv()
		if err := waitErr(t, done); !errors.Is(err, ErrUnmapped) {
			t.Error(err)
		}
		p.ok(4, le(16, 0, 0, 0)) // no message in between
	}},
	{"F_queue_is_bounded_and_ends_with_the_connection", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.MaxDMA = 4 })
		p, c := f.connect()
		p.ok(2, dmaMap(3, 0, 0, 4096))
		done := make(chan error, 100)
		n := 0
		for ; n < 100; n++ {
			if err := c.DMAWrite(0, []byte{1}, into(done)); err != nil {
				if !errors.Is(err, ErrQueueFull) {
					t.Fatal(err)
				}
				break
			}
		}
		if n != dmaWindow+4 {
			t.Errorf("%d messages accepted, want %d", n, dmaWindow+4)
		}
		_ = p.Close()
		for range n {
			if err := waitErr(t, done); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		}
	}},
	{"F_small_max_data_of_the_peer", func(t *testing.T) {
		f := serve(t)
		p := f.dial()
		p.ok(1, []byte("\x00\x00\x00\x00{\"capabilities\":{\"max_data_xfer_size\":512}}\x00"))
		c := <-f.dev.connected
		p.ok(2, dmaMap(3, 0, 0, 4096))
		done := make(chan error, 1)
		if err := c.DMARead(0, make([]byte, 1025), into(done)); err != nil {
			t.Fatal(err)
		}
		for _, want := range []int{512, 512, 1} {
			if _, _, n := p.answerDMA(make([]byte, 4096)); n != want {
				t.Errorf("%d bytes, want %d", n, want)
			}
		}
		if err := waitErr(t, done); err != nil {
			t.Error(err)
		}
	}},
}
