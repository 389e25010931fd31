package rootcomplex

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

const memBase = 0x10_0000

func newHost(t testing.TB) *RootComplex {
	t.Helper()
	mem := make([]byte, 64<<10)
	for i := range mem {
		mem[i] = byte(i ^ i>>8)
	}
	h, err := New(Spec{Memory: mem, MemoryBase: memBase, MaxPayload: 128, MaxRead: 128, Tags: 4})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// sent drains the host; the packets own their data.
func sent(t testing.TB, h *RootComplex, now time.Duration) (out []tlp.Packet) {
	h.Transmit(now, func(p *tlp.Packet) bool {
		if err := p.Validate(); err != nil {
			t.Errorf("host emits a bad TLP: %v", err)
		}
		q := *p
		q.Data = bytes.Clone(p.Data)
		out = append(out, q)
		return true
	})
	return out
}

func events(h *RootComplex) (es []Event) {
	for e, ok := h.NextEvent(); ok; e, ok = h.NextEvent() {
		es = append(es, e)
	}
	return es
}

// answer makes the completion of a read.
func answer(req *tlp.Packet, data []byte) *tlp.Packet {
	var c tlp.Packet
	transaction.Respond(&c, req, pcie.NewBDF(5, 0, 0), pcie.SuccessfulCompletion)
	c.Type, c.Length, c.Data = tlp.CplD, uint16(len(data)/4), data
	return &c
}

func TestReadOfTheCPU(t *testing.T) {
	h := newHost(t)
	dst := make([]byte, 8)
	h.Read(0xe000_0008, dst, 42)
	out := sent(t, h, 0)
	if len(out) != 1 || out[0].Type != tlp.MRd || out[0].Addr != 0xe000_0008 || out[0].Length != 2 {
		t.Fatalf("sent %+v", out)
	}
	h.Receive(1, answer(&out[0], []byte{1, 2, 3, 4, 5, 6, 7, 8}))
	if diff := cmp.Diff([]Event{{Kind: EventDone, Cookie: 42, OK: true}}, events(h)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if !bytes.Equal(dst, []byte{1, 2, 3, 4, 5, 6, 7, 8}) {
		t.Errorf("read %x", dst)
	}
}

func TestLongReadIsSplitAndWaitsForTags(t *testing.T) {
	h := newHost(t)
	dst := make([]byte, 1000)
	h.Read(0xe000_0ffe, dst, 1)
	var want []byte
	for round := 0; ; round++ {
		out := sent(t, h, 0)
		if len(out) == 0 {
			break
		}
		if len(out) > 4 {
			t.Fatalf("round %d: %d requests with 4 tags", round, len(out))
		}
		for i := range out {
			n := int(out[i].Length) * 4
			data := bytes.Repeat([]byte{byte(len(want))}, n)
			_, k := out[i].ByteRange()
			want = append(want, data[:k]...)
			h.Receive(0, answer(&out[i], data))
		}
	}
	if es := events(h); len(es) != 1 || !es[0].OK {
		t.Fatalf("events %+v", es)
	}
	if !bytes.Equal(dst, want) {
		t.Error("wrong data")
	}
}

// A root complex returns all ones for a read that fails or times out.
func TestReadFails(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(h *RootComplex, req *tlp.Packet)
		want Counters
	}{
		{"unsupported request", func(h *RootComplex, req *tlp.Packet) {
			var p tlp.Packet
			transaction.Respond(&p, req, 0, pcie.UnsupportedRequest)
			h.Receive(1, &p)
		}, Counters{Failed: 1}},
		{"poisoned", func(h *RootComplex, req *tlp.Packet) {
			p := answer(req, make([]byte, 4))
			p.EP = true
			h.Receive(1, p)
		}, Counters{Failed: 1}},
		{"completion timeout", func(h *RootComplex, _ *tlp.Packet) {
			if h.Wake() != 50*time.Millisecond {
				t.Errorf("wakes at %v", h.Wake())
			}
			h.Transmit(h.Wake(), nil)
		}, Counters{Timeouts: 1}},
		{"late completion", func(h *RootComplex, req *tlp.Packet) {
			h.Transmit(time.Second, nil)
			h.Receive(time.Second, answer(req, make([]byte, 4)))
		}, Counters{Timeouts: 1, Unexpected: 1}},
		{"link down", func(h *RootComplex, _ *tlp.Packet) { h.Abandon(1) }, Counters{Timeouts: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			dst := make([]byte, 4)
			h.Read(0xe000_0000, dst, 1)
			out := sent(t, h, 0)
			c.end(h, &out[0])
			if es := events(h); len(es) != 1 || es[0].OK || binary.LittleEndian.Uint32(dst) != allOnes {
				t.Errorf("events %+v, read %x", es, dst)
			}
			if diff := cmp.Diff(c.want, h.Counters()); diff != "" {
				t.Errorf("counters (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConfigurationRequests(t *testing.T) {
	for _, c := range []struct {
		name string
		id   pcie.BDF
		want tlp.Type // Invalid: nothing is sent
	}{
		{"root bus", pcie.NewBDF(1, 0, 0), tlp.CfgRd0},
		{"deeper bus", pcie.NewBDF(2, 3, 0), tlp.CfgRd1},
		{"inside the root complex", pcie.NewBDF(0, 0, 0), tlp.Invalid},
		{"device 1 on the link", pcie.NewBDF(1, 1, 0), tlp.Invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			h.ConfigRead(c.id, 0x10, 9)
			out := sent(t, h, 0)
			if c.want == tlp.Invalid {
				if es := events(h); len(out) != 0 || len(es) != 1 || es[0].OK || es[0].Value != allOnes {
					t.Errorf("sent %v, events %+v", out, es)
				}
				return
			}
			if len(out) != 1 || out[0].Type != c.want || out[0].Target != c.id || out[0].Register != 0x10 {
				t.Fatalf("sent %+v", out)
			}
			h.Receive(0, answer(&out[0], []byte{0x34, 0x12, 0xb0, 0xd9}))
			if diff := cmp.Diff([]Event{{Kind: EventDone, Cookie: 9, OK: true, Value: 0xd9b01234}}, events(h)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRequestRetry(t *testing.T) {
	h := newHost(t)
	h.ConfigWrite(pcie.NewBDF(1, 0, 0), 4, 3, 6, 1)
	now := time.Duration(0)
	for range 3 {
		out := sent(t, h, now)
		if len(out) != 1 || out[0].Type != tlp.CfgWr0 || out[0].FirstBE != 3 || out[0].Data[0] != 6 {
			t.Fatalf("at %v: sent %+v", now, out)
		}
		var p tlp.Packet
		transaction.Respond(&p, &out[0], 0, pcie.RequestRetry)
		h.Receive(now, &p)
		if again := sent(t, h, now); len(again) != 0 {
			t.Fatalf("at %v: repeated at once", now)
		}
		now = h.Wake()
	}
	for ; len(events(h)) == 0; now = h.Wake() {
		if now > 2*time.Second {
			t.Fatal("repeats for ever")
		}
		for _, req := range sent(t, h, now) {
			var p tlp.Packet
			transaction.Respond(&p, &req, 0, pcie.RequestRetry)
			h.Receive(now, &p)
		}
	}
}

func TestWritesArePostedInOrder(t *testing.T) {
	h := newHost(t)
	data := make([]byte, 300)
	for i := range data {
		data[i] = byte(i)
	}
	h.Write(0xe000_0101, data)
	h.Write(0xe000_0000, []byte{1, 0, 0, 0})
	got := make([]byte, 0x300)
	out := sent(t, h, 0)
	for i := range out {
		if len(out[i].Data) > 128 {
			t.Errorf("payload of %d bytes", len(out[i].Data))
		}
		transaction.WriteBytes(&out[i], func(addr uint64, src []byte) pcie.CplStatus {
			copy(got[addr-0xe000_0000:], src)
			return 0
		})
	}
	if !bytes.Equal(got[0x101:0x101+300], data) || got[0] != 1 || out[len(out)-1].Addr != 0xe000_0000 {
		t.Error("wrong data or order")
	}
	if es := events(h); len(es) != 0 {
		t.Errorf("posted writes have events: %v", es)
	}
}

func TestRefusedPacketIsOfferedAgain(t *testing.T) {
	h := newHost(t)
	dst := make([]byte, 4)
	h.Read(0xe000_0000, dst, 1)
	var first tlp.Packet
	h.Transmit(0, func(p *tlp.Packet) bool { first = *p; return false })
	out := sent(t, h, 1)
	if len(out) != 1 || !cmp.Equal(out[0], first) {
		t.Fatalf("first %+v, then %+v", first, out)
	}
}

// DMA reads are answered in pieces of 64 bytes at most 128 long, in order.
func TestDMARead(t *testing.T) {
	h := newHost(t)
	dev := transaction.NewRequester(transaction.RequesterConfig{ID: pcie.NewBDF(3, 0, 0), Tags: 8})
	for _, c := range []struct{ addr, n int }{{0, 1}, {3, 2}, {60, 8}, {1, 511}, {4000, 96}, {64<<10 - 4, 4}} {
		req := tlp.Packet{Type: tlp.MRd}
		req.SetMemory(memBase+uint64(c.addr), c.n)
		dst := make([]byte, c.n)
		dev.Begin(0, time.Second, &req, dst, 0)
		h.Receive(0, &req)
		done := false
		for _, p := range sent(t, h, 0) {
			r, ok := dev.Complete(&p)
			if !ok || len(p.Data) > 128 {
				t.Fatalf("%d bytes at %d: completion %+v is wrong", c.n, c.addr, p)
			}
			done = r.OK()
		}
		if !done || !bytes.Equal(dst, h.spec.Memory[c.addr:c.addr+c.n]) {
			t.Errorf("%d bytes at %d: done %v, wrong data", c.n, c.addr, done)
		}
	}
}

func TestDMAOutsideIsRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		addr uint64
		n    int
	}{
		{"below", memBase - 4, 4},
		{"across the start", memBase - 4, 8},
		{"across the end", memBase + 64<<10 - 4, 8},
		{"far above", 1 << 63, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			before := bytes.Clone(h.spec.Memory)
			rd := tlp.Packet{Type: tlp.MRd, DW4: c.addr>>32 != 0, Addr: c.addr, Length: uint16(c.n / 4), FirstBE: 0xf}
			if c.n > 4 {
				rd.LastBE = 0xf
			}
			h.Receive(0, &rd)
			wr := rd
			wr.Type, wr.Data = tlp.MWr, make([]byte, c.n)
			h.Receive(0, &wr)
			out := sent(t, h, 0)
			if len(out) != 1 || out[0].Status != pcie.UnsupportedRequest {
				t.Errorf("answers %+v", out)
			}
			if !bytes.Equal(before, h.spec.Memory) || h.Counters().Refused != 2 {
				t.Errorf("counters %+v", h.Counters())
			}
		})
	}
}

func TestDMAWriteAndAtomic(t *testing.T) {
	h := newHost(t)
	wr := tlp.Packet{Type: tlp.MWr, Data: []byte{1, 2, 3, 4, 5, 6, 7, 8}}
	wr.SetMemory(memBase+16, 8)
	h.Receive(0, &wr)
	add := tlp.Packet{Type: tlp.FetchAdd, Length: 2, Addr: memBase + 16, FirstBE: 0xf, LastBE: 0xf, Data: []byte{1, 0, 0, 0, 0, 0, 0, 0}}
	h.Receive(0, &add)
	if !bytes.Equal(h.spec.Memory[16:24], []byte{2, 2, 3, 4, 5, 6, 7, 8}) {
		t.Errorf("memory %x", h.spec.Memory[16:24])
	}
	out := sent(t, h, 0)
	if len(out) != 1 || !bytes.Equal(out[0].Data, wr.Data) {
		t.Errorf("answers %+v", out)
	}
}

func TestInterrupts(t *testing.T) {
	h := newHost(t)
	msi := tlp.Packet{Type: tlp.MWr, Length: 1, FirstBE: 0xf, Addr: 0xfee0_1000, Data: []byte{0x41, 0, 0, 0}}
	h.Receive(0, &msi)
	h.Receive(0, &tlp.Packet{Type: tlp.Msg, DW4: true, Routing: tlp.RouteLocal, Code: tlp.CodeAssertINTB})
	h.Receive(0, &tlp.Packet{Type: tlp.Msg, DW4: true, Routing: tlp.RouteLocal, Code: tlp.CodeDeassertINTB})
	want := []Event{{Kind: EventInterrupt, Addr: 0xfee0_1000, Data: 0x41}, {Kind: EventWire, Wire: 1, OK: true}, {Kind: EventWire, Wire: 1}}
	if diff := cmp.Diff(want, events(h)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// A host that waits for a tag still answers devices: otherwise a device that
// needs its DMA to go on before it answers would wait for ever.
func TestCompletionsPassWaitingReads(t *testing.T) {
	h := newHost(t)
	h.Read(0xe000_0000, make([]byte, 128*5), 1)
	if n := len(sent(t, h, 0)); n != 4 {
		t.Fatalf("%d requests with 4 tags", n)
	}
	req := tlp.Packet{Type: tlp.MRd}
	req.SetMemory(memBase, 4)
	h.Receive(0, &req)
	if out := sent(t, h, 0); len(out) != 1 || out[0].Type != tlp.CplD {
		t.Errorf("sent %+v", out)
	}
}

func TestSpecRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		spec Spec
	}{
		{"payload", Spec{MaxPayload: 100}},
		{"boundary", Spec{RCB: 32}},
		{"tags", Spec{Tags: 2000}},
		{"memory over interrupts", Spec{Memory: make([]byte, 1<<20), MemoryBase: 0xfee0_0000}},
	} {
		if _, err := New(c.spec); err == nil {
			t.Errorf("%s: taken", c.name)
		}
	}
}

// A device that makes requests and takes no completions fills a bounded queue.
func TestUnansweredRequestsAreBounded(t *testing.T) {
	h := newHost(t)
	inside, outside := tlp.Packet{Type: tlp.MRd, Requester: 0x100}, tlp.Packet{Type: tlp.MRd, Requester: 0x100}
	inside.SetMemory(memBase, 128)
	outside.SetMemory(0xe000_0000, 128)
	const each = maxAnswers
	for range each {
		h.Receive(0, &inside)
		h.Receive(0, &outside)
	}
	if c := h.Counters(); c.Dropped != 2*each-maxAnswers {
		t.Errorf("%d of %d requests dropped, want all but %d", c.Dropped, 2*each, maxAnswers)
	}
	if n := len(sent(t, h, 0)); n != maxAnswers {
		t.Errorf("%d completions, want %d", n, maxAnswers)
	}
	h.Receive(0, &inside)
	if n := len(sent(t, h, 0)); n != 1 {
		t.Errorf("%d completions of the next request, want 1", n)
	}
}

// Runs of reads are counted like single ones, and only if all of them are to memory.
func TestRunOfReads(t *testing.T) {
	h := newHost(t)
	dst := make([]byte, 4096)
	if !h.ReceiveReads(memBase+4096, 4096, 4) || !h.ReadRun(memBase+4096, dst) || !bytes.Equal(dst, h.spec.Memory[4096:8192]) {
		t.Error("reads of memory refused, or other bytes")
	}
	end := uint64(memBase + len(h.spec.Memory))
	if h.ReceiveReads(end-2048, 4096, 4) || h.ReceiveReads(memBase-1, 2, 1) || h.ReadRun(end-2048, dst) {
		t.Error("reads outside of memory taken")
	}
	if c := h.Counters(); c.ReadRequests != 4 || c.ReadBytes != 4096 {
		t.Errorf("counted %d reads of %d bytes, want 4 of 4096", c.ReadRequests, c.ReadBytes)
	}
}
