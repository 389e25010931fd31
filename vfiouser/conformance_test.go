package vfiouser

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/leaktest"
)

// TestConformance is the black-box list of what VMMs need of a server, by
// letter: connection, framing, information, configuration space, MMIO, DMA,
// interrupts, time, hot plug, reset. Peers are played byte by byte.
func TestConformance(t *testing.T) {
	for _, group := range [][]conformance{connectionTests, framingTests, infoTests, configTests, mmioTests, dmaTests, irqTests, timeTests} {
		for _, c := range group {
			t.Run(c.name, c.test)
		}
	}
}

type conformance struct {
	name string
	test func(*testing.T)
}

var connectionTests = []conformance{
	{"A_version_reply_size", func(t *testing.T) {
		p := serve(t).dial()
		r := p.ok(1, []byte(qemuVersion))
		if n := 16 + len(r.body); n > 214 {
			t.Errorf("VERSION reply of %d bytes: QEMU's buffer has 214", n)
		}
		if !bytes.Equal(r.body[:4], []byte{0, 0, 0, 0}) {
			t.Errorf("version % x, want 0.0", r.body[:4])
		}
		text, nul := bytes.CutSuffix(r.body[4:], []byte{0})
		var doc map[string]map[string]any
		if err := json.Unmarshal(text, &doc); err != nil || !nul || len(doc) != 1 {
			t.Fatalf("capabilities %q: %v", r.body[4:], err)
		}
		for key := range doc["capabilities"] {
			if !slices.Contains([]string{"max_msg_fds", "max_data_xfer_size", "max_dma_maps", "pgsizes", "write_multiple"}, key) {
				t.Errorf("QEMU warns about the capability %q", key)
			}
		}
		if n := doc["capabilities"]["max_msg_fds"]; n != 16.0 {
			t.Errorf("max_msg_fds %v", n)
		}
	}},
	{"A_version_without_json", func(t *testing.T) { serve(t).dial().ok(1, make([]byte, 4)) }},
	{"A_version_minor_1_of_rust", func(t *testing.T) {
		if r := serve(t).dial().ok(1, []byte("\x00\x00\x01\x00{\"capabilities\":{}}\x00")); r.body[2] != 0 {
			t.Errorf("minor %d", r.body[2])
		}
	}},
	{"A_version_refused", func(t *testing.T) {
		for name, body := range map[string]string{
			"major": "\x01\x00\x00\x00", "short": "\x00\x00\x00", "json": "\x00\x00\x00\x00{\x00", "type": "\x00\x00\x00\x00{\"capabilities\":7}\x00",
			"negative": "\x00\x00\x00\x00{\"capabilities\":{\"max_msg_fds\":-1}}\x00", "long": "\x00\x00\x00\x00{\"a\":\"" + strings.Repeat("x", 4096) + "\"}\x00",
		} {
			t.Run(name, func(t *testing.T) {
				p := serve(t).dial()
				p.wantErr(unix.EINVAL, 1, []byte(body))
				p.ok(1, []byte(qemuVersion)) // a refused one may be corrected
			})
		}
	}},
	{"A_command_before_version", func(t *testing.T) { serve(t).dial().wantErr(unix.EINVAL, 4, le(16, 0, 0, 0)) }},
	{"A_second_version", func(t *testing.T) {
		p, _ := serve(t).connect()
		p.wantErr(unix.EINVAL, 1, []byte(qemuVersion))
		p.ok(4, le(16, 0, 0, 0))
	}},
	{"A_second_connection_refused", func(t *testing.T) {
		f := serve(t)
		p, _ := f.connect()
		for range 2 * maxRefusing { // QEMU aborts when VERSION is not answered
			second := f.dial()
			second.wantErr(unix.EBUSY, 1, []byte(qemuVersion))
			_ = second.Close()
			for f.refusals() > 0 { // so that the next one is not beyond the bound
				runtime.Gosched()
			}
		}
		p.ok(4, le(16, 0, 0, 0))
	}},
	{"A_refused_connections_are_bounded", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.Deadline = time.Minute }) // of silent peers, which are served until then
		f.connect()
		for range maxRefusing {
			f.dial()
		}
		for {
			if _, err := f.dial().tryRecv(); errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		_ = f.Close() // does not wait for them
	}},
	{"A_shutdown_ends_refusals", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.Deadline = time.Hour })
		p, _ := f.connect()
		second := f.dial() // stays connected
		second.wantErr(unix.EBUSY, 1, []byte(qemuVersion))
		_ = p.Close()
		done := make(chan error, 1)
		go func() { done <- f.Shutdown(bg) }()
		_ = waitErr(t, done)
	}},
	{"A_reconnect_at_once", func(t *testing.T) {
		f := serve(t)
		for range 50 { // close and connect without a pause, as unplug and plug do
			p, _ := f.connect()
			_ = p.Close()
		}
	}},
	{"A_EOF_at_every_byte", func(t *testing.T) {
		f := serve(t)
		msg := (&rawPeer{}).message(10, 0, access(0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8))
		for n := range msg {
			p, _ := f.connect()
			p.send(msg[:n])
			_ = p.Close()
			err := <-f.dev.disconnected
			if n == 0 && err != nil || n > 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("EOF after %d bytes: %v", n, err)
			}
		}
		f.connect()
	}},
	{"A_descriptors_of_dead_connection_closed", func(t *testing.T) {
		f := serve(t)
		mem, _ := memfd(t, 1<<20)
		ev := event(t)
		before := leaktest.Descriptors(t)
		for range 10 {
			p, c := f.connect()
			p.ok(2, dmaMap(3, 0, 0, 1<<20), mustFD(t, mem))
			p.ok(8, le(20, 0x24, 2, 0, 2), mustFD(t, ev), mustFD(t, ev))
			p.ok(8, le(20, 0x14, 0, 0, 1), mustFD(t, ev))                     // the unmask event
			p.wantErr(unix.EINVAL, 8, le(20, 0x24, 2, 0, 1), mustFD(t, mem))  // not an event
			p.ok(4, le(16, 0, 0, 0), mustFD(t, mem), mustFD(t, mem))          // unexpected descriptors
			p.send(p.message(10, 0, access(0, 0, 1, 1))[:20], mustFD(t, mem)) // of a message that never ends
			_ = p.Close()
			<-c.Done()
		}
		if after := leaktest.Descriptors(t); after != before {
			t.Errorf("%d descriptors, %d before", after, before)
		}
	}},
	{"A_too_many_descriptors", func(t *testing.T) {
		f := serve(t)
		mem, _ := memfd(t, 4096)
		before := leaktest.Descriptors(t)
		p, c := f.connect()
		p.send(p.message(4, 0, le(16, 0, 0, 0)), slices.Repeat([]int{mustFD(t, mem)}, 40)...)
		<-c.Done()
		_ = p.Close()
		if after := leaktest.Descriptors(t); after != before {
			t.Errorf("%d descriptors, %d before", after, before)
		}
	}},
	{"A_reconnect_keeps_device_drops_maps", func(t *testing.T) {
		f := serve(t)
		p, c := f.connect()
		p.ok(10, access(0, 16, 4, 1, 2, 3, 4))
		p.ok(2, dmaMap(3, 0, 0x1000, 4096))
		p.ok(8, le(20, 0x24, 2, 0, 1), mustFD(t, event(t)))
		_ = p.Close()
		<-f.dev.disconnected
		if err := c.TriggerIRQ(IRQMSIX, 0); !errors.Is(err, ErrNotArmed) {
			t.Errorf("interrupt of a dead connection: %v", err)
		}
		if err := c.DMAWrite(0x1000, make([]byte, 4), nil); !errors.Is(err, ErrUnmapped) {
			t.Errorf("DMA of a dead connection: %v", err)
		}
		if err := c.SignalMSI(0xfee00000, 1, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("MSI of a dead connection: %v", err)
		}
		p, c = f.connect()
		if r := p.ok(9, access(0, 16, 4)); !bytes.Equal(r.body[16:], []byte{1, 2, 3, 4}) {
			t.Errorf("register % x after reconnection", r.body[16:])
		}
		if n := len(c.Memory().Mappings()); n != 0 {
			t.Errorf("%d mappings after reconnection", n)
		}
	}},
}

var framingTests = []conformance{
	{"B_split_points", func(t *testing.T) {
		f := serve(t)
		p, _ := f.connect()
		mem, _ := memfd(t, 8192)
		for split := 1; split < 48; split++ { // in two writes, the descriptor with the first byte
			m := p.message(2, 0, dmaMap(3, 4096, uint64(split)<<12, 4096))
			p.send(m[:split], mustFD(t, mem))
			p.send(m[split:])
			if r := p.recv(); r.errno != 0 || r.id != p.id {
				t.Fatalf("split at %d: %+v", split, r)
			}
		}
		for _, b := range p.message(10, 0, access(0, 8, 4, 9, 8, 7, 6)) {
			p.send([]byte{b})
		}
		if r := p.recv(); r.errno != 0 || len(r.body) != 16 {
			t.Fatalf("single bytes: %+v", r)
		}
		maps := f.Conn().Memory().Mappings()
		if len(maps) != 47 {
			t.Errorf("%d mappings", len(maps))
		}
		for _, m := range maps {
			if !m.InPlace {
				t.Errorf("mapping %#x has lost its descriptor", m.Addr)
			}
		}
	}},
	{"B_descriptors_stay_with_their_message", func(t *testing.T) {
		f := serve(t)
		p, c := f.connect()
		x, xb := memfd(t, 4096)
		y, yb := memfd(t, 4096)
		xb[0], yb[0] = 'x', 'y'
		// One segment with the end of one message and the whole of the next.
		a := p.message(2, 0, dmaMap(3, 0, 0x1000, 4096))
		plain := p.message(2, 0, dmaMap(3, 0, 0x2000, 4096))
		b := p.message(2, 0, dmaMap(3, 0, 0x3000, 4096))
		p.send(a, mustFD(t, x))
		p.send(plain[:20])
		p.send(plain[20:])
		p.send(b, mustFD(t, y))
		for range 3 {
			if r := p.recv(); r.errno != 0 {
				t.Fatal(r.errno)
			}
		}
		var got [1]byte
		for addr, want := range map[uint64]byte{0x1000: 'x', 0x3000: 'y'} {
			if err := c.Memory().Read(addr, got[:]); err != nil || got[0] != want {
				t.Errorf("at %#x: %q %v, want %q", addr, got[0], err, want)
			}
		}
		if err := c.Memory().Read(0x2000, got[:]); !errors.Is(err, ErrNoDescriptor) {
			t.Errorf("the message without descriptor: %v", err)
		}
	}},
	{"B_one_write_per_message", func(t *testing.T) {
		p, _ := serve(t).connect()
		buf := make([]byte, 64<<10)
		for _, n := range []int{0, 1, 4, 8, 4096, 32<<10 - 32} {
			p.send(p.message(9, 0, access(2, 0, n)))
			if k, err := p.Read(buf); err != nil || k != 32+n {
				t.Errorf("reply of %d bytes: first read returns %d, %v", 32+n, k, err)
			}
		}
	}},
	{"B_200_pipelined", func(t *testing.T) {
		p, _ := serve(t).connect()
		var all []byte
		var want []uint16
		for i := range 200 {
			switch i % 5 {
			case 0:
				all = append(all, p.message(9, 0, access(0, uint64(i), 4))...)
			case 1:
				all = append(all, p.message(10, 0, access(0, uint64(i), 4, 1, 2, 3, 4))...)
			case 2:
				all = append(all, p.message(10, 0x10, access(0, uint64(i), 4, 1, 2, 3, 4))...)
				continue
			case 3:
				all = append(all, p.message(4, 0, le(16, 0, 0, 0))...)
			case 4:
				all = append(all, p.message(99, 0, nil)...)
			}
			want = append(want, p.id)
		}
		p.send(all)
		for _, id := range want {
			if r := p.recv(); r.id != id {
				t.Fatalf("reply to %d, want %d", r.id, id)
			}
		}
	}},
	{"B_identifiers_wrap_and_repeat", func(t *testing.T) {
		p, _ := serve(t).connect()
		for _, id := range []uint16{0xfffe, 0xffff, 0, 0, 0, 77, 5} {
			p.id = id - 1
			p.ok(9, access(0, 0, 4))
		}
	}},
	{"B_no_reply_on_every_command", func(t *testing.T) {
		p, _ := serve(t).connect()
		for cmd := range uint16(40) {
			for _, body := range [][]byte{nil, access(0, 0, 4), access(0, 0, 4, 1, 2, 3, 4), dmaMap(3, 0, uint64(cmd)<<20, 4096), le(20, 0x21, 2, 0, 0)} {
				p.send(p.message(cmd, 0x10, body))
			}
		}
		p.ok(9, access(0, 0, 4)) // the first answer on the socket
	}},
	{"B_unknown_command", func(t *testing.T) {
		p, _ := serve(t).connect()
		for _, cmd := range []uint16{0, 14, 17, 18, 19, 11, 12, 0xffff} {
			p.wantErr(unix.ENOSYS, cmd, make([]byte, 32))
		}
		p.wantErr(unix.ENOTTY, 16, le(8, 1<<16|1))
	}},
	{"B_bad_sizes_end_the_connection", func(t *testing.T) {
		f := serve(t)
		for _, size := range []uint32{0, 15, uint32(maxMessage(DefaultMaxData)) + 1, 0xffffffff} {
			p, _ := f.connect()
			m := p.message(9, 0, access(0, 0, 4))
			binary.LittleEndian.PutUint32(m[4:], size)
			p.send(m)
			if err := <-f.dev.disconnected; !errors.As(err, new(*ProtocolError)) {
				t.Errorf("size %d: %v", size, err)
			}
		}
		p, _ := f.connect()
		p.send(p.message(9, 2, access(0, 0, 4))) // neither request nor reply
		if err := <-f.dev.disconnected; !errors.As(err, new(*ProtocolError)) {
			t.Errorf("type 2: %v", err)
		}
	}},
	{"B_longest_write", func(t *testing.T) {
		p, _ := serve(t).connect()
		p.ok(10, access(2, 0, testBAR2, bytes.Repeat([]byte{0x5a}, testBAR2)...))
		if r := p.ok(9, access(2, 0, testBAR2)); bytes.Count(r.body[16:], []byte{0x5a}) != testBAR2 {
			t.Error("wrong data")
		}
	}},
	{"B_unsolicited_reply", func(t *testing.T) {
		f := serve(t)
		p, _ := f.connect()
		p.send(p.message(11, 1, make([]byte, 32)))
		p.send(p.message(12, 0x21, nil))
		p.ok(4, le(16, 0, 0, 0))
		if n := f.Stats().Unsolicited; n != 2 {
			t.Errorf("%d unsolicited replies counted, want 2", n)
		}
	}},
	{"B_truncated_payload", func(t *testing.T) {
		p, _ := serve(t).connect()
		for cmd, n := range map[uint16]int{2: 32, 3: 24, 4: 16, 5: 32, 6: 16, 7: 16, 8: 20, 9: 16, 10: 16, 15: 8} {
			for k := range n {
				p.wantErr(unix.EINVAL, cmd, bytes.Repeat([]byte{1}, k))
			}
		}
	}},
}
