package hostproxy

import (
	"bytes"
	"testing"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

func readRequest(addr uint64, n int) *tlp.Packet {
	p := &tlp.Packet{Type: tlp.MRd}
	p.SetMemory(addr, n)
	return p
}

func TestReadQueueIsBoundedAndInOrder(t *testing.T) {
	var q readQueue
	for round := range 3 { // the ring has turned
		for i := range maxReads {
			if !q.add(readRequest(uint64(i)<<12, 4), pcie.MinPayload) {
				t.Fatalf("round %d: read %d refused", round, i)
			}
		}
		if q.add(readRequest(0, 4), pcie.MinPayload) {
			t.Fatal("more reads than there are tags")
		}
		for i := range maxReads {
			if got := q.front().addr; got != uint64(i)<<12 {
				t.Fatalf("read %d is at %#x", i, got)
			}
			q.pop()
			if i == maxReads/2 && round == 1 {
				q.drop()
				break
			}
		}
		if !q.empty() {
			t.Fatal("not empty")
		}
	}
}

// A run counts as its reads, and leaves the queue in parts.
func TestReadQueueTakesRuns(t *testing.T) {
	run := func(n, size int) *link.Run { return &link.Run{First: *readRequest(1<<32, size), Count: n} }
	var q readQueue
	if q.addRun(run(maxReads+1, 128), pcie.MaxPayload) {
		t.Error("a run of more reads than there are tags is accepted")
	}
	if q.addRun(run(2, 256), 128) || q.addRun(run(2, 64), pcie.MaxPayload) {
		t.Error("a run is accepted whose completions are none")
	}
	if !q.addRun(run(10, 4096), pcie.MaxPayload) || !q.add(readRequest(0, 4), pcie.MaxPayload) {
		t.Fatal("refused")
	}
	if q.addRun(run(maxReads-10, 4096), pcie.MaxPayload) {
		t.Error("more reads than there are tags")
	}
	for i, most := range []int{3, 20, 1} {
		r, addr := q.completions(most)
		if i == 2 {
			if r != nil {
				t.Error("a run of a single read")
			}
			break
		}
		want := []int{3, 6}[i]
		if r == nil || r.Count != want || r.First.Tag != []pcie.Tag{0, 4}[i] || addr != 1<<32+uint64(r.First.Tag)<<12 || r.First.Length != 1024 {
			t.Fatalf("part %d: %+v at %#x", i, r, addr)
		}
		q.popRun(r.Count)
		if i == 0 { // one is answered on its own
			if got := q.front(); got.addr != 1<<32+3<<12 || got.n != 4096 || got.fetch != fetchNone {
				t.Errorf("the next read is %#x, %d bytes", got.addr, got.n)
			}
			q.front().fetch = fetchPending
			if r, _ := q.completions(1); r != nil {
				t.Error("a run begins with a read that is being fetched")
			}
			q.pop()
		}
	}
	if q.pop(); !q.empty() || q.count != 0 {
		t.Errorf("%d reads are left", q.count)
	}
}

// The answer to a message goes to its own read, or is dropped.
func TestReadQueueTakesAnswers(t *testing.T) {
	var q readQueue
	q.add(readRequest(0x1000, 64), pcie.MinPayload)
	q.add(readRequest(0x2003, 5), pcie.MinPayload)
	first, second := q.front().ticket, q.front().ticket+1
	q.front().bytes = bytes.Repeat([]byte{7}, 64)
	q.arrived(second, pcie.UnsupportedRequest)
	if q.front().fetch == fetchDone {
		t.Error("the answer went to another read")
	}
	q.arrived(first, pcie.SuccessfulCompletion)
	if q.front().fetch != fetchDone || q.front().status != pcie.SuccessfulCompletion {
		t.Error("the answer is not noted")
	}
	for _, c := range []struct {
		name string
		addr uint64
		n    int
		ok   bool
	}{
		{"all", 0x1000, 64, true},
		{"the end", 0x103c, 4, true},
		{"before", 0xfff, 4, false},
		{"beyond", 0x1040, 1, false},
		{"across the end", 0x103e, 4, false},
		{"nothing", 0x1000, 0, true},
	} {
		if got := q.fetched(c.addr, c.n); (got != nil) != c.ok || len(got) != c.n && c.ok {
			t.Errorf("%s: %d bytes", c.name, len(got))
		}
	}
	q.pop()
	if got := q.front(); got.addr != 0x2003 || got.n != 5 || got.status != pcie.UnsupportedRequest {
		t.Errorf("second read: %#x, %d bytes, %v", got.addr, got.n, got.status)
	}
	q.pop()
	q.arrived(first, pcie.SuccessfulCompletion) // of a read that has gone
	if q.fetched(0, 0) != nil {
		t.Error("bytes from an empty queue")
	}
}

func TestAlign(t *testing.T) {
	r := newRequestPort(&slot{}, Config{})
	for _, c := range []struct {
		name string
		addr uint64
		src  []byte
		want []byte
	}{
		{"whole double words", 8, []byte{1, 2, 3, 4}, []byte{1, 2, 3, 4}},
		{"one byte at the start", 8, []byte{1}, []byte{1, 0, 0, 0}},
		{"one byte at the end", 11, []byte{1}, []byte{0, 0, 0, 1}},
		{"across two", 11, []byte{1, 2}, []byte{0, 0, 0, 1, 2, 0, 0, 0}},
		{"four bytes across two", 10, []byte{1, 2, 3, 4}, []byte{0, 0, 1, 2, 3, 4, 0, 0}},
		{"nothing", 8, nil, nil},
	} {
		if got := r.align(c.addr, c.src); !bytes.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if n := len(r.align(3, make([]byte, pcie.MaxPayload))); n != pcie.MaxPayload+pcie.DW {
		t.Errorf("the largest payload, not aligned, takes %d bytes", n)
	}
}

// draining is a connection whose queue of messages is full, and empties before the caller knows.
type draining struct {
	v     *vm
	asked int
}

func (d *draining) DMARead(uint64, []byte, func(error)) error {
	if d.asked++; d.asked == 1 {
		d.v.signalled(nil) // the last message ends
		return vfiouser.ErrQueueFull
	}
	return nil
}

// A read finds the queue of messages full, and the queue empties at once: no end of a message
// wakes the read later.
func TestReadIsNotForgottenByAFullQueue(t *testing.T) {
	v := &vm{}
	v.reads.add(readRequest(0x1000, 64), pcie.MinPayload)
	d := &draining{v: v}
	if v.fetchMessage(d, v.reads.front()) {
		t.Error("the read has ended")
	}
	if got := v.reads.front().fetch; d.asked != 2 || got != fetchPending {
		t.Errorf("asked %d times, state %d; want 2 and that the message is under way", d.asked, got)
	}
}
