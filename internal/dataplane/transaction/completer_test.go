package transaction_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

func TestReadJob(t *testing.T) {
	memory := make([]byte, 0x3000)
	for i := range memory {
		memory[i] = byte(i) | 1
	}
	fetch := func(addr uint64, dst []byte) pcie.CplStatus {
		if addr+uint64(len(dst)) > uint64(len(memory)) {
			return pcie.UnsupportedRequest
		}
		copy(dst, memory[addr:])
		return pcie.SuccessfulCompletion
	}
	for _, c := range []struct {
		name     string
		req      tlp.Packet
		rcb, mps int
		want     []string // type, status, byte count, lower address, payload length
	}{
		{"one", read(0x1000, 128), 64, 128, []string{"CplD SC 128 0x0 128"}},
		{"split at RCB", read(0x1030, 200), 64, 128, []string{"CplD SC 200 0x30 80", "CplD SC 120 0x0 120"}},
		{"split at RCB 128", read(0x1030, 200), 128, 128, []string{"CplD SC 200 0x30 80", "CplD SC 120 0x0 120"}},
		{"split at MPS 256", read(0x1020, 512), 64, 256, []string{"CplD SC 512 0x20 224", "CplD SC 288 0x0 256", "CplD SC 32 0x0 32"}},
		{"unaligned", read(0x1003, 2), 64, 128, []string{"CplD SC 2 0x3 8"}},
		{"zero-length", read(0x1000, 0), 64, 128, []string{"CplD SC 1 0x0 4"}},
		{"zero-length outside of memory", read(0x4000, 0), 64, 128, []string{"Cpl UR 1 0x0 0"}},
		{"4096 bytes", read(0x1000, 4096), 64, 4096, []string{"CplD SC 4096 0x0 4096"}},
		{"fails at once", read(0x4000, 8), 64, 128, []string{"Cpl UR 8 0x0 0"}},
		{"locked", tlp.Packet{Type: tlp.MRdLk, Length: 1, FirstBE: 15, Addr: 0x1010}, 64, 128, []string{"CplDLk SC 4 0x10 4"}},
		{"locked fails", tlp.Packet{Type: tlp.MRdLk, Length: 1, FirstBE: 15, Addr: 0x4010}, 64, 128, []string{"CplLk UR 4 0x10 0"}},
		{"configuration, one byte", tlp.Packet{Type: tlp.CfgRd0, Length: 1, FirstBE: 2, Register: 0x40}, 64, 128, []string{"CplD SC 4 0x0 4"}},
		{"I/O", tlp.Packet{Type: tlp.IORd, Length: 1, FirstBE: 15, Addr: 0x40}, 64, 128, []string{"CplD SC 4 0x0 4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.req.Requester, c.req.Tag, c.req.TC, c.req.Attr = device, 77, 3, tlp.RelaxedOrdering
			if c.req.Type == tlp.CfgRd0 || c.req.Type == tlp.IORd {
				c.req.TC, c.req.Attr = 0, 0
			}
			var job transaction.ReadJob
			var out tlp.Packet
			job.Start(&c.req, root, c.rcb, c.mps)
			buf := bytes.Repeat([]byte{0xee}, c.mps)
			var got []string
			refuse := true
			emit := func(p *tlp.Packet) bool {
				// emit refuses every packet once.
				if refuse = !refuse; !refuse {
					return false
				}
				if err := p.Validate(); err != nil {
					t.Error(err)
				}
				if p.Requester != device || p.Tag != 77 || p.TC != c.req.TC || p.Attr != c.req.Attr || p.Completer != root {
					t.Errorf("completion %+v", *p)
				}
				if bytes.Contains(p.Data, []byte{0xee}) {
					t.Error("a completion carries stale bytes of the buffer")
				}
				got = append(got, fmt.Sprintf("%v %v %d %#x %d", p.Type, p.Status, p.ByteCount, p.LowerAddr, len(p.Data)))
				return true
			}
			for !job.Emit(&out, buf, fetch, emit) {
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("completions %q, want %q", got, c.want)
			}
			if !job.Done() || !job.Emit(&out, buf, fetch, emit) {
				t.Error("the job is not done")
			}
		})
	}
}

// The job does not copy bytes that it can view in place, and reads the others.
func TestReadJobViewsInPlace(t *testing.T) {
	memory := make([]byte, 0x2000)
	for i := range memory {
		memory[i] = byte(i * 7)
	}
	const hole = 0x1080 // the 64 bytes from here on cannot be viewed
	view := func(addr uint64, n int) []byte {
		if addr+uint64(n) > hole && addr < hole+64 {
			return nil
		}
		return memory[addr : addr+uint64(n)]
	}
	for _, c := range []struct{ addr, n, viewed int }{
		{0x1000, 64, 1}, {0x1000, 128, 1}, {0x1000, 512, 3}, {0x1101, 255, 1}, {0x1000, 254, 1}, {hole, 64, 0}, {0x1003, 1, 0},
	} {
		req := read(uint64(c.addr), c.n)
		buf := make([]byte, 128)
		var job transaction.ReadJob
		var out tlp.Packet
		job.Start(&req, root, 64, 128)
		var got []byte
		viewed := 0
		job.EmitFrom(&out, buf, view, func(addr uint64, dst []byte) pcie.CplStatus {
			copy(dst, memory[addr:])
			return pcie.SuccessfulCompletion
		}, func(p *tlp.Packet) bool {
			if &p.Data[0] != &buf[0] {
				viewed++
			}
			pad := 0
			if len(got) == 0 {
				pad = c.addr % 4
			}
			got = append(got, p.Data[pad:]...)
			return true
		})
		if !slices.Equal(got[:c.n], memory[c.addr:c.addr+c.n]) || viewed != c.viewed {
			t.Errorf("%d bytes at %#x: bytes equal: %v, %d completions without a copy, want %d",
				c.n, c.addr, slices.Equal(got[:c.n], memory[c.addr:c.addr+c.n]), viewed, c.viewed)
		}
	}
}

func TestWriteBytes(t *testing.T) {
	for _, c := range []struct {
		name string
		p    tlp.Packet
		want []string
	}{
		{"all of 1 DW", tlp.Packet{Type: tlp.MWr, Length: 1, FirstBE: 15, Addr: 0x1000}, []string{"0x1000 01020304"}},
		{"nothing", tlp.Packet{Type: tlp.MWr, Length: 1, FirstBE: 0, Addr: 0x1000}, nil},
		{"a gap", tlp.Packet{Type: tlp.MWr, Length: 1, FirstBE: 0b1101, Addr: 0x1000}, []string{"0x1000 01", "0x1002 0304"}},
		{"2 DW", tlp.Packet{Type: tlp.MWr, Length: 2, FirstBE: 15, LastBE: 15, Addr: 0x1004}, []string{"0x1004 0102030405060708"}},
		{"2 DW with gaps", tlp.Packet{Type: tlp.MWr, Length: 2, FirstBE: 0b1001, LastBE: 0b0101, Addr: 0x1000}, []string{"0x1000 01", "0x1003 0405", "0x1006 07"}},
		{"3 DW unaligned", tlp.Packet{Type: tlp.MWr, Length: 3, FirstBE: 8, LastBE: 1, Addr: 0x1000}, []string{"0x1003 040506070809"}},
		{"configuration", tlp.Packet{Type: tlp.CfgWr0, Length: 1, FirstBE: 0b0110, Register: 0x10}, []string{"0x11 0203"}},
		{"I/O", tlp.Packet{Type: tlp.IOWr, Length: 1, FirstBE: 0b1000, Addr: 0x3f8}, []string{"0x3fb 04"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i := range int(c.p.Length) * 4 {
				c.p.Data = append(c.p.Data, byte(i+1))
			}
			if err := c.p.Validate(); err != nil {
				t.Fatal(err)
			}
			var got []string
			status := transaction.WriteBytes(&c.p, func(addr uint64, src []byte) pcie.CplStatus {
				got = append(got, fmt.Sprintf("%#x %x", addr, src))
				return pcie.SuccessfulCompletion
			})
			if status != pcie.SuccessfulCompletion || !slices.Equal(got, c.want) {
				t.Errorf("%v, runs %q; want %q", status, got, c.want)
			}
		})
	}
	short := tlp.Packet{Type: tlp.MWr, Length: 2, FirstBE: 15, LastBE: 15, Data: make([]byte, 4)}
	if got := transaction.WriteBytes(&short, nil); got != pcie.UnsupportedRequest {
		t.Errorf("a payload that is not Length double words: %v", got)
	}
	stop := tlp.Packet{Type: tlp.MWr, Length: 1, FirstBE: 0b0101, Data: make([]byte, 4)}
	calls := 0
	if got := transaction.WriteBytes(&stop, func(uint64, []byte) pcie.CplStatus { calls++; return pcie.CompleterAbort }); got != pcie.CompleterAbort || calls != 1 {
		t.Errorf("status %v after %d calls", got, calls)
	}
}

// SetMemory and WriteBytes agree on the bytes that the byte enables select.
func TestWriteBytesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addr := rapid.Uint64Range(0, 300).Draw(t, "addr")
		data := rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "data")
		p := tlp.Packet{Type: tlp.MWr}
		p.SetMemory(addr, len(data))
		p.Data = make([]byte, p.PayloadLen())
		copy(p.Data[addr%4:], data)
		memory := make([]byte, 512)
		transaction.WriteBytes(&p, func(at uint64, src []byte) pcie.CplStatus {
			copy(memory[at:], src)
			return pcie.SuccessfulCompletion
		})
		want := make([]byte, 512)
		copy(want[addr:], data)
		if !bytes.Equal(memory, want) {
			t.Fatalf("memory differs")
		}
	})
}

func TestAtomics(t *testing.T) {
	le := binary.LittleEndian
	u32 := func(v ...uint32) (b []byte) {
		for _, x := range v {
			b = le.AppendUint32(b, x)
		}
		return b
	}
	u64 := func(v ...uint64) (b []byte) {
		for _, x := range v {
			b = le.AppendUint64(b, x)
		}
		return b
	}
	for _, c := range []struct {
		name      string
		typ       tlp.Type
		old, data []byte
		next      []byte
	}{
		{"FetchAdd32 wraps", tlp.FetchAdd, u32(0xffffffff), u32(2), u32(1)},
		{"FetchAdd64", tlp.FetchAdd, u64(0xffffffff), u64(1), u64(1 << 32)},
		{"Swap32", tlp.Swap, u32(1), u32(2), u32(2)},
		{"Swap64", tlp.Swap, u64(1), u64(2), u64(2)},
		{"CAS32 equal", tlp.CAS, u32(7), u32(7, 9), u32(9)},
		{"CAS32 not equal", tlp.CAS, u32(7), u32(8, 9), u32(7)},
		{"CAS64 equal", tlp.CAS, u64(7), u64(7, 9), u64(9)},
		{"CAS128 equal", tlp.CAS, u64(7, 8), u64(7, 8, 9, 10), u64(9, 10)},
		{"CAS128 half equal", tlp.CAS, u64(7, 8), u64(7, 9, 9, 10), u64(7, 8)},
	} {
		t.Run(c.name, func(t *testing.T) {
			memory := slices.Clone(c.old)
			req := tlp.Packet{Type: c.typ, Requester: device, Tag: 3, Addr: 0x40, Length: uint16(len(c.data) / 4), Data: c.data}
			if err := req.Validate(); err != nil {
				t.Fatal(err)
			}
			var out tlp.Packet
			transaction.ExecuteAtomic(&out, &req, root, make([]byte, 2*transaction.MaxOperand),
				func(_ uint64, dst []byte) pcie.CplStatus { copy(dst, memory); return pcie.SuccessfulCompletion },
				func(_ uint64, src []byte) pcie.CplStatus { copy(memory, src); return pcie.SuccessfulCompletion })
			if err := out.Validate(); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(memory, c.next) {
				t.Errorf("memory %x, want %x", memory, c.next)
			}
			if out.Type != tlp.CplD || !bytes.Equal(out.Data, c.old) || int(out.ByteCount) != len(c.old) || out.Tag != 3 {
				t.Errorf("completion %+v, want the original value %x", out, c.old)
			}
		})
	}
}

func TestAtomicFails(t *testing.T) {
	req := tlp.Packet{Type: tlp.Swap, Requester: device, Addr: 0x40, Length: 1, Data: make([]byte, 4)}
	buf := make([]byte, 2*transaction.MaxOperand)
	var out tlp.Packet
	ur := func(uint64, []byte) pcie.CplStatus { return pcie.UnsupportedRequest }
	transaction.ExecuteAtomic(&out, &req, root, buf, ur, nil)
	if out.Type != tlp.Cpl || out.Status != pcie.UnsupportedRequest || out.Validate() != nil {
		t.Errorf("completion %+v", out)
	}
	req.Length = 3
	transaction.ExecuteAtomic(&out, &req, root, buf, nil, nil)
	if out.Type != tlp.Cpl || out.Status != pcie.UnsupportedRequest {
		t.Errorf("illegal length: completion %+v", out)
	}
}

func TestCompleterDoesNotAllocate(t *testing.T) {
	req := read(0x1010, 512)
	write := tlp.Packet{Type: tlp.MWr, Length: 4, FirstBE: 15, LastBE: 15, Data: make([]byte, 16)}
	add := tlp.Packet{Type: tlp.FetchAdd, Length: 2, Data: make([]byte, 8)}
	buf := make([]byte, 256)
	var job transaction.ReadJob
	var out tlp.Packet
	access := func(uint64, []byte) pcie.CplStatus { return pcie.SuccessfulCompletion }
	emit := func(*tlp.Packet) bool { return true }
	if n := testing.AllocsPerRun(100, func() {
		job.Start(&req, root, 64, 256)
		job.Emit(&out, buf, access, emit)
		transaction.WriteBytes(&write, access)
		transaction.ExecuteAtomic(&out, &add, root, buf, access, access)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
