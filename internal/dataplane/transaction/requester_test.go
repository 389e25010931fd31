package transaction_test

import (
	"bytes"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

const (
	device = pcie.BDF(0x0100)
	root   = pcie.BDF(0x0008)
)

func read(addr uint64, n int) tlp.Packet {
	p := tlp.Packet{Type: tlp.MRd}
	p.SetMemory(addr, n)
	return p
}

// complete answers req with data, cut to double words with the bytes in place.
func complete(req *tlp.Packet, addr uint64, left int, data []byte) tlp.Packet {
	payload := make([]byte, transaction.Pad(addr)+len(data)+3)
	copy(payload[transaction.Pad(addr):], data)
	payload = payload[:len(payload)&^3]
	return tlp.Packet{
		Type: tlp.CplD, Requester: req.Requester, Tag: req.Tag, Completer: root,
		ByteCount: uint16(left), LowerAddr: uint8(addr & 0x7f),
		Length: uint16(len(payload) / 4), Data: payload,
	}
}

func TestRequesterMatchesOneCompletion(t *testing.T) {
	for _, c := range []struct {
		name string
		req  tlp.Packet
		edit func(cpl *tlp.Packet)
		ok   bool
		data string
		st   pcie.CplStatus
	}{
		{"all bytes", read(0x1000, 8), nil, true, "abcdefgh", 0},
		{"unaligned", read(0x1003, 5), nil, true, "abcde", 0},
		{"zero-length", read(0x1000, 0), func(p *tlp.Packet) { p.ByteCount, p.Length, p.Data = 1, 1, make([]byte, 4) }, true, "", 0},
		{"unsupported request", read(0x1000, 8), func(p *tlp.Packet) { p.Type, p.Length, p.Data, p.Status = tlp.Cpl, 0, nil, pcie.UnsupportedRequest }, true, "", pcie.UnsupportedRequest},
		{"completer abort with data", read(0x1000, 8), func(p *tlp.Packet) { p.Status = pcie.CompleterAbort }, true, "", pcie.CompleterAbort},
		{"wrong tag", read(0x1000, 8), func(p *tlp.Packet) { p.Tag++ }, false, "", 0},
		{"tag out of range", read(0x1000, 8), func(p *tlp.Packet) { p.Tag = 1023 }, false, "", 0},
		{"wrong requester", read(0x1000, 8), func(p *tlp.Packet) { p.Requester++ }, false, "", 0},
		{"wrong byte count", read(0x1000, 8), func(p *tlp.Packet) { p.ByteCount-- }, false, "", 0},
		{"byte count modified", read(0x1000, 8), func(p *tlp.Packet) { p.ByteCount, p.BCM = 3, true }, true, "abcdefgh", 0},
		{"wrong lower address", read(0x1000, 8), func(p *tlp.Packet) { p.LowerAddr++ }, false, "", 0},
		{"no data", read(0x1000, 8), func(p *tlp.Packet) { p.Type, p.Length, p.Data = tlp.Cpl, 0, nil }, false, "", 0},
		{"payload shorter than its length", read(0x1000, 8), func(p *tlp.Packet) { p.Length++ }, false, "", 0},
		{"payload longer than the read", read(0x1000, 8), func(p *tlp.Packet) { p.Length++; p.Data = append(p.Data, 0, 0, 0, 0) }, false, "", 0},
		{"locked completion of an unlocked read", read(0x1000, 8), func(p *tlp.Packet) { p.Type = tlp.CplDLk }, false, "", 0},
		{"no completion", read(0x1000, 8), func(p *tlp.Packet) { p.Type = tlp.MWr }, false, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := transaction.NewRequester(transaction.RequesterConfig{ID: device, Tags: 4})
			addr, n := c.req.ByteRange()
			dst := make([]byte, n)
			if !r.Begin(0, time.Second, &c.req, dst, 42) {
				t.Fatal("Begin refused")
			}
			cpl := complete(&c.req, addr, n, []byte("abcdefgh")[:n])
			if c.edit != nil {
				c.edit(&cpl)
			}
			res, ok := r.Complete(&cpl)
			if ok != c.ok {
				t.Fatalf("Complete = %+v, %v; want %v", res, ok, c.ok)
			}
			if !ok {
				if r.Counters().Unexpected != 1 || r.InFlight() != 1 {
					t.Errorf("counters %+v, %d in flight", r.Counters(), r.InFlight())
				}
				return
			}
			if !res.Done || res.Cookie != 42 || res.Status != c.st || res.N != len(c.data) || string(res.Data) != c.data || string(dst[:res.N]) != c.data {
				t.Errorf("result %+v with %q, want %q", res, dst, c.data)
			}
			if r.InFlight() != 0 || r.Free(0) != 4 {
				t.Errorf("%d in flight, %d free", r.InFlight(), r.Free(0))
			}
			if _, again := r.Complete(&cpl); again {
				t.Error("the same completion was accepted twice")
			}
		})
	}
}

func TestRequesterKinds(t *testing.T) {
	for _, c := range []struct {
		name string
		req  tlp.Packet
		want string // contents of dst afterwards
	}{
		{"CfgRd0 of one byte", tlp.Packet{Type: tlp.CfgRd0, Length: 1, FirstBE: 4, Register: 0x40}, "c"},
		{"CfgRd1", tlp.Packet{Type: tlp.CfgRd1, Length: 1, FirstBE: 15, Register: 0x40}, "abcd"},
		{"CfgWr0", tlp.Packet{Type: tlp.CfgWr0, Length: 1, FirstBE: 15, Data: make([]byte, 4)}, ""},
		{"IORd", tlp.Packet{Type: tlp.IORd, Length: 1, FirstBE: 12, Addr: 0x3f8}, "cd"},
		{"IOWr", tlp.Packet{Type: tlp.IOWr, Length: 1, FirstBE: 1, Data: make([]byte, 4)}, ""},
		{"DMWr", tlp.Packet{Type: tlp.DMWr, Length: 1, FirstBE: 15, Data: make([]byte, 4)}, ""},
		{"FetchAdd", tlp.Packet{Type: tlp.FetchAdd, Length: 1, Addr: 0x1004, Data: make([]byte, 4)}, "abcd"},
		{"CAS", tlp.Packet{Type: tlp.CAS, Length: 4, Addr: 0x1008, Data: make([]byte, 16)}, "abcdefgh"},
		{"MRdLk", tlp.Packet{Type: tlp.MRdLk, Length: 1, FirstBE: 15, Addr: 0x1000}, "abcd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := transaction.NewRequester(transaction.RequesterConfig{ID: device, Tags: 1})
			dst := make([]byte, len(c.want))
			if !r.Begin(0, time.Second, &c.req, dst, 1) {
				t.Fatal("Begin refused")
			}
			var cpl tlp.Packet
			transaction.Respond(&cpl, &c.req, root, pcie.SuccessfulCompletion)
			if c.req.Type.Read() {
				cpl.Type++
				cpl.Data = []byte("abcdefgh")[:(int(cpl.ByteCount)+3)&^3]
				cpl.Length = uint16(len(cpl.Data) / 4)
			}
			if err := cpl.Validate(); err != nil {
				t.Fatal(err)
			}
			res, ok := r.Complete(&cpl)
			if !ok || !res.OK() || string(dst) != c.want {
				t.Errorf("Complete = %+v, %v; dst %q, want %q", res, ok, dst, c.want)
			}
		})
	}
}

func TestRequesterExpireInOrderOfDeadlines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		deadlines := rapid.SliceOfN(rapid.IntRange(1, 20), 1, 30).Draw(t, "deadlines")
		r := transaction.NewRequester(transaction.RequesterConfig{Tags: 32, Quarantine: -1})
		for i, d := range deadlines {
			p := read(0x1000, 4)
			if !r.Begin(0, time.Duration(d), &p, nil, uint64(i)) {
				t.Fatal("Begin refused")
			}
		}
		now, seen := time.Duration(0), 0
		for r.InFlight() > 0 {
			wake := r.Wake()
			if wake <= now {
				t.Fatalf("Wake = %v at %v", wake, now)
			}
			now = wake
			r.Expire(now, nil, func(res transaction.Result) {
				seen++
				if got := time.Duration(deadlines[res.Cookie]); got != now {
					t.Fatalf("request with deadline %v expired at %v", got, now)
				}
			})
		}
		if seen != len(deadlines) || r.Wake() != machine.Never {
			t.Fatalf("%d results, Wake %v", seen, r.Wake())
		}
	})
}

// A request exceeds its deadline by the slack at the time when it passes. The request
// after it has its own deadline again.
func TestSlack(t *testing.T) {
	r := transaction.NewRequester(transaction.RequesterConfig{Tags: 4})
	begin := func(now, deadline time.Duration) {
		p := read(0x1000, 4)
		if !r.Begin(now, deadline, &p, nil, 7) {
			t.Fatal("Begin refused")
		}
	}
	var slack, until, lasting time.Duration // until and lasting are the deadline and the time of the first request
	expired := func(now time.Duration) (n int) {
		r.Expire(now, func(o transaction.Overdue) time.Duration {
			if want := (transaction.Overdue{Cookie: 7, Deadline: until, Timeout: lasting}); o != want {
				t.Errorf("slack is asked for %+v, want %+v", o, want)
			}
			return slack
		}, func(transaction.Result) { n++ })
		return n
	}
	begin(0, 10)
	until, lasting = 10, 10
	for _, c := range []struct {
		now, slack time.Duration
		expired    int
		wake       time.Duration
	}{
		{9, 100, 0, 10},
		{10, 5, 0, 15},
		{14, 0, 0, 15},
		{15, 20, 0, 30},
		{30, 0, 1, machine.Never},
	} {
		slack = c.slack
		if got := expired(c.now); got != c.expired || r.Wake() != c.wake {
			t.Errorf("at %d with a slack of %d: %d expired, Wake %v, want %d and %v", c.now, c.slack, got, r.Wake(), c.expired, c.wake)
		}
	}
	begin(30, 40)
	if r.Wake() != 40 {
		t.Errorf("the next request wakes at %v, want 40", r.Wake())
	}
	slack, until, lasting = 7, 40, 10
	expired(40)
	begin(40, 39)
	if r.Wake() != 39 {
		t.Errorf("with an earlier deadline in front Wake is %v, want 39", r.Wake())
	}
}

// After a timeout of every tag, Wake names the end of the quarantine until Expire frees
// the tags. An owner that begins nothing then sleeps: with a Wake in the past it would run
// without end.
func TestExpireEndsQuarantines(t *testing.T) {
	r := transaction.NewRequester(transaction.RequesterConfig{Tags: 2, Quarantine: 10})
	for range 2 {
		p := read(0x1000, 4)
		if !r.Begin(0, 5, &p, nil, 0) {
			t.Fatal("Begin refused")
		}
	}
	r.Expire(5, nil, func(transaction.Result) {})
	if w := r.Wake(); w != 15 {
		t.Errorf("Wake is %v, want the end of the quarantine, 15ns", w)
	}
	r.Expire(15, nil, func(transaction.Result) { t.Error("a request has ended twice") })
	if w := r.Wake(); w != machine.Never {
		t.Errorf("Wake is %v with two free tags", w)
	}
}

// The completion of a request that timed out long ago does not answer another request, while
// another tag is free: its tag is used last. After that completion it is a tag like the others.
func TestVeryLateCompletions(t *testing.T) {
	const tags = 4
	r := transaction.NewRequester(transaction.RequesterConfig{Tags: tags})
	begin := func(now time.Duration) tlp.Packet {
		p := read(0x1000, 8)
		if !r.Begin(now, now+1, &p, make([]byte, 8), 0) {
			t.Fatalf("no tag is free at %v", now)
		}
		return p
	}
	answer := func(p tlp.Packet, at, n int) bool {
		c := complete(&p, 0x1000+uint64(at), n, make([]byte, n))
		c.ByteCount = uint16(8 - at)
		res, ok := r.Complete(&c)
		return ok && res.Done
	}
	first := begin(0)
	r.Expire(1, nil, func(transaction.Result) {})
	now := 2 * transaction.DefaultQuarantine
	for range 3 * tags {
		if p := begin(now); p.Tag == first.Tag {
			t.Fatal("the tag is used although others are free")
		} else if !answer(p, 0, 8) {
			t.Fatal("a request is not answered")
		}
	}
	for range tags { // but nothing is refused
		begin(now)
	}
	r.Expire(now+1, nil, func(transaction.Result) {})
	if got := r.Free(now + 2); got != 0 {
		t.Fatalf("%d tags free, want none", got)
	}
	for i, half := range []int{0, 4} { // the late completion of one of them, in two parts
		if answer(first, half, 4) {
			t.Error("a late completion ends a request")
		}
		if got := r.Free(now + 2); got != i {
			t.Errorf("after part %d: %d tags free, want %d", i, got, i)
		}
	}
	if p := begin(now + 3); p.Tag != first.Tag || !answer(p, 0, 8) {
		t.Error("the tag is of no use after the late completion")
	}
	if got := r.Free(now + 2*transaction.DefaultQuarantine); got != tags {
		t.Errorf("%d of %d tags free in the end", got, tags)
	}
	if got := r.Counters(); got.Late != 2 || got.Unexpected != 0 {
		t.Errorf("%+v, want 2 late completions", got)
	}
}

// The requester reassembles any legal split of several reads, interleaved in any
// order.
func TestReassemblyProperty(t *testing.T) {
	memory := make([]byte, 3*pcie.PageSize)
	for i := range memory {
		memory[i] = byte(i*131 + i>>8)
	}
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.IntRange(0, pcie.PageSize).Draw(t, "base")
		n := rapid.IntRange(1, 2*pcie.PageSize-64).Draw(t, "n")
		mrrs := 128 << rapid.IntRange(0, 5).Draw(t, "mrrs")
		mps := 128 << rapid.IntRange(0, 5).Draw(t, "mps")
		rcb := rapid.SampledFrom([]int{64, 128}).Draw(t, "rcb")
		r := transaction.NewRequester(transaction.RequesterConfig{ID: device, Tags: 16})
		dst := make([]byte, n)
		offset := 0
		var jobs []*transaction.ReadJob
		buf := make([]byte, pcie.MaxPayload)
		var out tlp.Packet
		for offset < n || len(jobs) > 0 {
			if offset < n && (len(jobs) == 0 || rapid.Bool().Draw(t, "begin")) {
				addr := uint64(base + offset)
				size := tlp.NextChunk(addr, n-offset, mrrs)
				p := read(addr, size)
				if r.Begin(0, time.Second, &p, dst[offset:offset+size], 0) {
					offset += size
					jobs = append(jobs, &transaction.ReadJob{})
					jobs[len(jobs)-1].Start(&p, root, rcb, mps)
					continue
				}
			}
			if len(jobs) == 0 {
				t.Fatal("no tag is free and no request is outstanding")
			}
			i := rapid.IntRange(0, len(jobs)-1).Draw(t, "job")
			budget := 1
			done := jobs[i].Emit(&out, buf, func(addr uint64, b []byte) pcie.CplStatus {
				copy(b, memory[addr:])
				return pcie.SuccessfulCompletion
			}, func(p *tlp.Packet) bool {
				if budget == 0 {
					return false
				}
				budget--
				if err := p.Validate(); err != nil {
					t.Fatal(err)
				}
				if len(p.Data) > mps {
					t.Fatalf("payload of %d bytes, MPS is %d", len(p.Data), mps)
				}
				if _, ok := r.Complete(p); !ok {
					t.Fatalf("completion %+v refused", *p)
				}
				return true
			})
			if done {
				jobs = append(jobs[:i], jobs[i+1:]...)
			}
		}
		if !bytes.Equal(dst, memory[base:base+n]) {
			t.Fatal("the data read differs from memory")
		}
		if c := r.Counters(); r.InFlight() != 0 || c.Succeeded != c.Issued || c.Unexpected != 0 {
			t.Fatalf("%d in flight, counters %+v", r.InFlight(), c)
		}
	})
}

// For any completions, no tag is lost and no byte is written past dst.
func FuzzRequesterComplete(f *testing.F) {
	p := read(0x1003, 300)
	whole := complete(&p, 0x1003, 300, make([]byte, 300))
	whole.Requester = device
	f.Add(whole.Append(nil))
	whole.Status = pcie.CompleterAbort
	f.Add(whole.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := transaction.NewRequester(transaction.RequesterConfig{ID: device, Tags: 3})
		guard := make([]byte, 400)
		req, cas := read(0x1003, 300), tlp.Packet{Type: tlp.CAS, Length: 2, Addr: 0x1000, Data: make([]byte, 8)}
		r.Begin(0, 1, &req, guard[:300:300], 0)
		r.Begin(0, 1, &cas, guard[300:304:304], 1)
		for len(b) > 0 {
			p, n, err := tlp.Parse(b)
			if err != nil {
				break
			}
			b = b[n:]
			if res, ok := r.Complete(&p); ok && res.N > len(res.Dst) {
				t.Fatalf("%d bytes for a buffer of %d", res.N, len(res.Dst))
			}
		}
		if !bytes.Equal(guard[304:], make([]byte, 96)) {
			t.Fatal("written past the buffer")
		}
		r.Expire(1, nil, func(transaction.Result) {})
		if free := r.Free(machine.Never); free != 3 || r.InFlight() != 0 {
			t.Fatalf("%d of 3 tags free, %d in flight", free, r.InFlight())
		}
	})
}

func TestRequesterDoesNotAllocate(t *testing.T) {
	r := transaction.NewRequester(transaction.RequesterConfig{ID: device, Tags: 64})
	p := read(0x1000, 128)
	dst, data := make([]byte, 128), make([]byte, 128)
	cpl := complete(&p, 0x1000, 128, data)
	cpl.Requester = device
	expired := 0
	count := func(transaction.Result) { expired++ }
	now := time.Duration(0)
	if n := testing.AllocsPerRun(1000, func() {
		r.Begin(now, now+1, &p, dst, 0)
		cpl.Tag = p.Tag
		if _, ok := r.Complete(&cpl); !ok {
			t.Fatal("completion refused")
		}
		r.Begin(now, now+1, &p, dst, 0)
		now += 2 * transaction.DefaultQuarantine
		r.Expire(now, nil, count)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkBeginComplete(b *testing.B) {
	r := transaction.NewRequester(transaction.RequesterConfig{ID: device, Tags: 256})
	p := read(0x1000, 128)
	dst := make([]byte, 128)
	cpl := complete(&p, 0x1000, 128, dst)
	cpl.Requester = device
	for b.Loop() {
		r.Begin(0, time.Second, &p, dst, 0)
		cpl.Tag = p.Tag
		if _, ok := r.Complete(&cpl); !ok {
			b.Fatal("refused")
		}
	}
}
