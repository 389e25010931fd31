package broker_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
)

const gib = 1 << 30

var gpus = []broker.GPU{
	{Name: "a", UUID: [16]byte{1}, Device: share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: 16 * gib}},
	{Name: "b", UUID: [16]byte{2}, Device: share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: 16 * gib}},
}

// spec is a share with the same part of each of its GPUs.
type spec struct {
	ID             string
	Class          share.Class
	Memory         int64
	Compute, Limit share.PPM
	GPUs           []int
}

// of returns the share, for which a former agent kept some memory on each GPU.
func (s spec) of(kept int64) broker.Spec {
	out := broker.Spec{ID: s.ID, Class: s.Class}
	for _, gpu := range s.GPUs {
		out.Parts = append(out.Parts, broker.Part{GPU: gpu, Memory: s.Memory, Compute: s.Compute, Limit: s.Limit, Kept: kept})
	}
	return out
}

// table is a broker with the last messages to each process.
type table struct {
	t       testing.TB
	b       *broker.Broker
	now     time.Duration
	got     map[broker.ProcessID][]wire.Message
	closed  []broker.ProcessID
	killed  []broker.ProcessID
	gone    []string
	dropped []broker.Dropped
	pages   []string
}

func newTable(t testing.TB, c broker.Config) *table {
	t.Helper()
	if c.GPUs == nil {
		c.GPUs = gpus
	}
	if c.Policy == "" {
		c.Policy = "gemini"
	}
	b, err := broker.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &table{t: t, b: b, got: map[broker.ProcessID][]wire.Message{}}
}

func (x *table) flush() {
	var out broker.Output
	x.b.Transmit(x.now, &out)
	for _, s := range out.Sends {
		x.got[s.Process] = append(x.got[s.Process], s.Message)
	}
	for _, id := range out.Closes {
		x.closed = append(x.closed, id)
		x.b.Closed(x.now, id)
	}
	x.killed = append(x.killed, out.Kills...)
	x.gone = append(x.gone, out.Removed...)
	x.dropped = append(x.dropped, out.Dropped...)
	x.pages = append(x.pages, out.Pages...)
}

func (x *table) create(s spec) {
	x.t.Helper()
	if s.GPUs == nil {
		s.GPUs = []int{0}
	}
	if err := x.b.Create(x.now, s.of(0)); err != nil {
		x.t.Fatal(err)
	}
}

// resize gives all parts of a share a size.
func (x *table) resize(s spec) error {
	for _, st := range x.b.Status() {
		for i := range st.Parts {
			if st.ID == s.ID {
				s.GPUs = append(s.GPUs, st.Parts[i].GPU)
			}
		}
	}
	return x.b.Resize(x.now, s.ID, s.of(0).Parts...)
}

func (x *table) send(id broker.ProcessID, m wire.Message) {
	x.b.Receive(x.now, id, m)
	x.flush()
}

// last takes the last message to a process.
func (x *table) last(id broker.ProcessID) wire.Message {
	x.t.Helper()
	if len(x.got[id]) == 0 {
		x.t.Fatalf("no message to process %d", id)
	}
	m := x.got[id][len(x.got[id])-1]
	x.got[id] = nil
	return m
}

func (x *table) connect(id broker.ProcessID, shareID string, pid int) {
	x.t.Helper()
	if err := x.b.Connect(x.now, id, shareID, pid); err != nil {
		x.t.Fatal(err)
	}
	x.send(id, wire.Message{Type: wire.Hello, ID: wire.Version})
	if m := x.last(id); m.Type != wire.Welcome {
		x.t.Fatalf("answer %+v", m)
	}
}

func (x *table) allocate(id broker.ProcessID, bytes uint64) bool {
	x.t.Helper()
	x.send(id, wire.Message{Type: wire.Allocate, ID: 1, Bytes: bytes})
	return x.last(id).Type == wire.Granted
}

func (x *table) used(shareID string) uint64 {
	x.t.Helper()
	p, ok := x.b.Page(shareID)
	if !ok {
		x.t.Fatalf("no share %s", shareID)
	}
	return p.GPUs[0].Used
}

// Memory holds to the byte, for all processes of a share together, and comes back when a
// process frees it or ends.
func TestMemory(t *testing.T) {
	x := newTable(t, broker.Config{})
	x.create(spec{ID: "s", Memory: 1000})
	x.connect(1, "s", 11)
	x.connect(2, "s", 12)
	if !x.allocate(1, 600) || x.allocate(2, 401) || !x.allocate(2, 400) || x.allocate(1, 1) {
		t.Error("the limit does not hold")
	}
	x.send(1, wire.Message{Type: wire.Allocate, ID: 7, Bytes: 50})
	if m := x.last(1); m.Type != wire.Refused || m.ID != 7 || m.Bytes != 0 {
		t.Errorf("answer %+v", m)
	}
	x.send(1, wire.Message{Type: wire.Free, Bytes: 601}) // never allocated
	if x.used("s") != 1000 {
		t.Errorf("%d bytes used", x.used("s"))
	}
	x.send(1, wire.Message{Type: wire.Free, Bytes: 100})
	if !x.allocate(2, 100) || x.allocate(2, 1) {
		t.Error("freed memory did not come back")
	}
	x.b.Closed(x.now, 2) // the process lives: it still has its memory
	if x.used("s") != 1000 {
		t.Errorf("%d bytes used after a connection was closed", x.used("s"))
	}
	x.b.Ended(x.now, 2)
	if x.used("s") != 500 {
		t.Errorf("%d bytes used after a process ended", x.used("s"))
	}
	if p := x.b.Status()[0].Processes; len(p) != 1 || p[0].Memory != 500 || p[0].Wrong != 1 {
		t.Errorf("processes %+v", p)
	}
}

// The shares of a GPU have at most its memory and its compute together.
func TestRoom(t *testing.T) {
	x := newTable(t, broker.Config{})
	x.create(spec{ID: "a", Memory: 10 * gib, Compute: share.Percent(60)})
	for _, s := range []spec{
		{ID: "b", Memory: 6*gib + 1, GPUs: []int{0}},
		{ID: "b", Memory: 6 * gib, Compute: share.Percent(41), GPUs: []int{0}},
		{ID: "b", Memory: 7 * gib, GPUs: []int{1, 0}}, // the first GPU has the room
		{ID: "a", Memory: 1, GPUs: []int{1}},
		{ID: "B", Memory: 1, GPUs: []int{1}},
		{ID: "../b", Memory: 1, GPUs: []int{1}},
		{ID: "", Memory: 1, GPUs: []int{1}},
		{ID: "b", Memory: 0, GPUs: []int{1}},
		{ID: "b", Memory: 1, GPUs: []int{2}},
		{ID: "b", Memory: 1, GPUs: []int{1, 1}},
		{ID: "b", Memory: 1},
		{ID: "b", Memory: 1, GPUs: []int{1}, Compute: share.Percent(50), Limit: share.Percent(40)},
	} {
		if err := x.b.Create(0, s.of(0)); err == nil {
			t.Errorf("created %+v", s)
		}
	}
	x.create(spec{ID: "b", Memory: 6 * gib, Compute: share.Percent(40), GPUs: []int{0, 1}})
	if err := x.resize(spec{ID: "a", Memory: 10*gib + 1}); err == nil {
		t.Error("grew into another share")
	}
	if err := x.resize(spec{ID: "b", Memory: 5 * gib, Compute: share.Percent(40)}); err != nil {
		t.Error(err)
	}
	if err := x.resize(spec{ID: "a", Memory: 11 * gib, Compute: share.Percent(60)}); err != nil {
		t.Error(err)
	}
	over := newTable(t, broker.Config{OverCommit: 150})
	over.create(spec{ID: "a", Memory: 16 * gib})
	over.create(spec{ID: "b", Memory: 8*gib - 100})
	if err := over.b.Create(0, spec{ID: "c", Memory: 101, GPUs: []int{0}}.of(0)); err == nil {
		t.Error("the over-commitment has no end")
	}
}

// A share that shrinks below what it uses keeps the room until it frees the memory.
func TestShrink(t *testing.T) {
	x := newTable(t, broker.Config{GPUs: gpus[:1]})
	x.create(spec{ID: "a", Memory: 10 * gib})
	x.connect(1, "a", 11)
	if p, _ := x.b.Page("a"); p.Processes != 1 || !slices.Contains(x.pages, "a") {
		t.Errorf("page %+v", p)
	}
	if !x.allocate(1, 8*gib) {
		t.Fatal("refused")
	}
	if err := x.resize(spec{ID: "a", Memory: 4 * gib}); err != nil {
		t.Fatal(err)
	}
	x.flush()
	if p, _ := x.b.Page("a"); p.GPUs[0].Limit != 4*gib || p.GPUs[0].Used != 8*gib || !slices.Contains(x.pages, "a") {
		t.Errorf("page %+v", p.GPUs[0])
	}
	other := spec{ID: "b", Memory: 12 * gib, GPUs: []int{0}}
	if x.allocate(1, 1) || x.b.Create(0, other.of(0)) == nil {
		t.Error("memory in use was given out")
	}
	x.send(1, wire.Message{Type: wire.Free, Bytes: 5 * gib})
	if err := x.b.Create(0, other.of(0)); err != nil {
		t.Error(err)
	}
	if x.allocate(1, gib+1) || !x.allocate(1, gib) {
		t.Error("the new limit does not hold")
	}
}

// After a restart of the agent the processes tell what they have. It is bounded by what
// the former agent kept for their share.
func TestReconnection(t *testing.T) {
	x := newTable(t, broker.Config{GPUs: gpus[:1]})
	if err := x.b.Create(0, spec{ID: "a", Memory: 4 * gib, GPUs: []int{0}}.of(8*gib)); err != nil {
		t.Fatal(err)
	}
	x.connect(1, "a", 11)
	x.connect(2, "a", 12)
	x.send(1, wire.Message{Type: wire.Holds, Bytes: 5 * gib})
	x.send(1, wire.Message{Type: wire.Holds, Bytes: 1}) // a second time
	x.send(2, wire.Message{Type: wire.Holds, Bytes: wire.MaxBytes})
	if got := x.used("a"); got != 8*gib {
		t.Errorf("%d bytes used, want the %d that are kept", got, uint64(8*gib))
	}
	x.b.Ended(0, 2)
	if err := x.b.Create(0, spec{ID: "b", Memory: 9 * gib, GPUs: []int{0}}.of(0)); err == nil {
		t.Error("memory that is kept was given out")
	}
	x.b.Settle(x.now)
	if err := x.b.Create(0, spec{ID: "b", Memory: 11 * gib, GPUs: []int{0}}.of(0)); err != nil {
		t.Error(err)
	}
	// A process that closes its connection and connects again has the same memory.
	x.b.Closed(0, 1)
	x.connect(3, "a", 11)
	if got := x.used("a"); got != 5*gib {
		t.Errorf("%d bytes used", got)
	}
	x.send(3, wire.Message{Type: wire.Holds, Bytes: 2 * gib})
	x.b.Ended(0, 1) // the old connection's watch: it is no process any more
	if got := x.used("a"); got != 2*gib {
		t.Errorf("%d bytes used", got)
	}
	if !x.allocate(3, 2*gib) || x.allocate(3, 1) {
		t.Error("the limit does not hold")
	}
}

// A share ends with its processes: they are asked first, and killed after the grace.
func TestEnd(t *testing.T) {
	x := newTable(t, broker.Config{})
	x.create(spec{ID: "a", Memory: gib})
	x.connect(1, "a", 11)
	x.connect(2, "a", 12)
	if err := x.b.End(0, "a", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	x.flush()
	for id := range broker.ProcessID(2) {
		if m := x.last(id + 1); m.Type != wire.End || m.Arg[0] != uint64(5*time.Second) {
			t.Errorf("message %+v", m)
		}
	}
	if p, _ := x.b.Page("a"); !p.End || p.Grace != 5*time.Second {
		t.Errorf("page %+v", p)
	}
	if err := x.b.Connect(0, 3, "a", 13); err == nil {
		t.Error("a process joined a share that ends")
	}
	x.b.Ended(0, 1)
	if x.b.Wake() > 5*time.Second {
		t.Error("the broker does not wake")
	}
	x.now = 5 * time.Second
	x.flush()
	if !slices.Equal(x.killed, []broker.ProcessID{2}) || len(x.gone) > 0 {
		t.Errorf("killed %v, removed %v", x.killed, x.gone)
	}
	x.b.Ended(x.now, 2)
	x.flush()
	if !slices.Equal(x.gone, []string{"a"}) {
		t.Errorf("removed %v", x.gone)
	}
	x.create(spec{ID: "b", Memory: 16 * gib, Compute: share.Whole})
	x.b.Abandon(x.now, "b")
	x.flush()
	if len(x.gone) != 2 || x.b.End(0, "b", 0) == nil {
		t.Errorf("removed %v", x.gone)
	}
}

// A process that comes to an evicted share after the others were killed has the same time to
// end, and is killed then too.
func TestLateProcessOfAnEvictedShare(t *testing.T) {
	x := newTable(t, broker.Config{})
	x.create(spec{ID: "a", Memory: gib, Limit: share.Percent(50)})
	x.connect(1, "a", 11)
	x.send(1, wire.Message{Type: wire.Launch, ID: 5, Arg: [wire.Args]uint64{80, 256, 1}})
	x.now = share.StuckAfter
	x.flush()
	m := x.last(1)
	grace := time.Duration(m.Arg[0])
	if m.Type != wire.End {
		t.Fatalf("message %+v after a launch of a minute", m)
	}
	x.now += grace
	x.flush()
	if err := x.b.Connect(x.now, 2, "a", 12); err != nil {
		t.Fatal(err)
	}
	x.send(2, wire.Message{Type: wire.Hello, ID: wire.Version})
	if m := x.last(2); m.Type != wire.End {
		t.Errorf("message %+v", m)
	}
	x.b.Ended(x.now, 1)
	x.killed = nil
	x.now += grace
	x.flush()
	if !slices.Equal(x.killed, []broker.ProcessID{2}) {
		t.Errorf("killed %v", x.killed)
	}
}

// Two shares take turns; the gate of one that is alone and without a limit is open.
func TestGates(t *testing.T) {
	x := newTable(t, broker.Config{})
	x.create(spec{ID: "a", Memory: gib})
	x.create(spec{ID: "b", Memory: gib, Limit: share.Percent(50)})
	gateOf := func(id string) wire.Gate {
		p, _ := x.b.Page(id)
		return p.GPUs[0].Gate
	}
	x.connect(1, "a", 11)
	if gateOf("a") != wire.Open || gateOf("b") != wire.Asked {
		t.Errorf("gates %v and %v", gateOf("a"), gateOf("b"))
	}
	x.connect(2, "b", 12)
	if gateOf("a") != wire.Asked {
		t.Errorf("gate %v beside another share", gateOf("a"))
	}
	x.send(2, wire.Message{Type: wire.Launch, ID: 5, Arg: [wire.Args]uint64{80, 256, 1}})
	if m := x.last(2); m.Type != wire.Permit || m.ID != 5 {
		t.Errorf("message %+v", m)
	}
	if err := x.b.Hold(0, "b", true); err != nil {
		t.Fatal(err)
	}
	x.send(2, wire.Message{Type: wire.Done, ID: 5})
	x.send(2, wire.Message{Type: wire.Launch, ID: 6})
	if gateOf("b") != wire.Held || len(x.got[2]) > 0 {
		t.Errorf("gate %v, messages %v", gateOf("b"), x.got[2])
	}
	if err := x.b.Hold(0, "b", false); err != nil {
		t.Fatal(err)
	}
	x.flush()
	if m := x.last(2); m.Type != wire.Permit || m.ID != 6 {
		t.Errorf("message %+v", m)
	}
	x.b.Ended(0, 2)
	if gateOf("a") != wire.Open {
		t.Errorf("gate %v, alone again", gateOf("a"))
	}
}

// A process that breaks a rule is closed, and no other.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		name string
		why  wire.Reason
		do   func(x *table)
	}{
		{"second greeting", wire.NotGreeted, func(x *table) { x.send(1, wire.Message{Type: wire.Hello, ID: wire.Version}) }},
		{"GPU of no share", wire.WrongMessage, func(x *table) { x.send(1, wire.Message{Type: wire.Free, GPU: 1}) }},
		{"garbage", wire.WrongMessage, func(x *table) { x.b.Wrong(1); x.flush() }},
		{"launches without waiting", wire.TooMany, func(x *table) {
			for i := range uint64(10_000) {
				x.send(1, wire.Message{Type: wire.Launch, ID: i})
			}
		}},
		{"launch after the end", wire.TooMany, func(x *table) {
			x.send(1, wire.Message{Type: wire.Exit})
			x.send(1, wire.Message{Type: wire.Launch})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newTable(t, broker.Config{})
			x.create(spec{ID: "a", Memory: gib})
			x.create(spec{ID: "b", Memory: gib})
			x.connect(2, "b", 12)
			x.connect(1, "a", 11)
			c.do(x)
			if m := x.last(1); m.Type != wire.Reject || wire.Reason(m.Arg[0]) != c.why {
				t.Errorf("message %+v", m)
			}
			if !slices.Equal(x.closed, []broker.ProcessID{1}) {
				t.Errorf("closed %v", x.closed)
			}
			x.b.Ended(0, 1)
			if !x.allocate(2, gib) {
				t.Error("another process is refused")
			}
			if s := x.b.Status()[0]; s.InFlight != 0 || len(s.Processes) != 0 || s.Used != 0 {
				t.Errorf("left behind: %+v", s)
			}
		})
	}
	x := newTable(t, broker.Config{})
	x.create(spec{ID: "a", Memory: gib})
	if err := x.b.Connect(0, 1, "a", 1); err != nil {
		t.Fatal(err)
	}
	x.send(1, wire.Message{Type: wire.Allocate, Bytes: 1})
	if m := x.last(1); m.Type != wire.Reject || wire.Reason(m.Arg[0]) != wire.NotGreeted {
		t.Errorf("message %+v", m)
	}
	if err := x.b.Connect(0, 2, "a", 2); err != nil {
		t.Fatal(err)
	}
	x.send(2, wire.Message{Type: wire.Hello, ID: wire.Version + 1})
	if m := x.last(2); m.Type != wire.Reject || wire.Reason(m.Arg[0]) != wire.WrongVersion {
		t.Errorf("message %+v", m)
	}
}

func TestNew(t *testing.T) {
	for want, c := range map[string]broker.Config{
		"no GPU":    {Policy: "mps"},
		"100 to":    {GPUs: gpus, Policy: "mps", OverCommit: 99},
		"no policy": {GPUs: gpus, Policy: "none"},
	} {
		if _, err := broker.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	x := newTable(t, broker.Config{})
	if x.b.Wake() != machine.Never {
		t.Error("a broker without shares wakes")
	}
}
