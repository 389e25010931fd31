package broker_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/share"
)

// Whatever hostile processes send, the account is right, and nothing of them stays.
func TestHostile(t *testing.T) {
	for _, policy := range []string{"gemini", "timeslice", "muxflow", "orion", "reef", "gaiapi"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(3, 4))
			x := newTable(t, broker.Config{Policy: policy})
			names := []string{"a", "b", "c"}
			live := map[broker.ProcessID]bool{}
			next := broker.ProcessID(0)
			for step := range 5000 {
				x.now += time.Duration(rng.Int64N(int64(3 * time.Millisecond)))
				name := names[rng.IntN(len(names))]
				switch rng.IntN(40) {
				case 0:
					_ = x.b.Create(x.now, spec{ID: name, Class: share.Class(rng.IntN(2)), Memory: 1 + rng.Int64N(6*gib), Compute: share.Percent(rng.IntN(40)), GPUs: rng.Perm(2)[:1+rng.IntN(2)]}.of(0))
				case 1:
					_ = x.resize(spec{ID: name, Memory: 1 + rng.Int64N(6*gib), Compute: share.Percent(rng.IntN(40))})
					p := broker.Part{GPU: rng.IntN(2), Memory: 1 + rng.Int64N(6*gib), Compute: share.Percent(rng.IntN(40))}
					if _, err := x.b.Promise(name, p); err != nil || step%5 == 0 {
						x.b.Withhold(name)
					}
					_ = x.b.Resize(x.now, name, p)
					if step%3 == 0 {
						_ = x.b.Drop(x.now, name, p.GPU, time.Duration(rng.Int64N(int64(time.Second))))
					}
					_ = x.b.Add(x.now, name, p)
				case 2:
					_ = x.b.Hold(x.now, name, rng.IntN(3) == 0)
				case 3:
					if step%9 == 0 {
						_ = x.b.End(x.now, name, time.Duration(rng.Int64N(int64(time.Second))))
					}
				case 4, 5:
					next++
					if x.b.Connect(x.now, next, name, rng.IntN(30)) == nil {
						live[next] = true
						x.b.Receive(x.now, next, wire.Message{Type: wire.Hello, ID: wire.Version, Arg: [wire.Args]uint64{0, rng.Uint64N(2)}})
					}
				case 6:
					for id := range live {
						x.b.Ended(x.now, id)
						delete(live, id)
						break
					}
				case 7:
					x.b.Closed(x.now, broker.ProcessID(rng.Uint64N(uint64(next)+1)))
				default:
					m := wire.Message{Type: wire.Type(rng.IntN(13)), GPU: uint32(rng.IntN(3)), ID: rng.Uint64N(8), Bytes: rng.Uint64N(gib) << rng.IntN(4)}
					for i := range m.Arg {
						m.Arg[i] = rng.Uint64() >> rng.IntN(64)
					}
					if rng.IntN(2) == 0 {
						m.Arg[4] = wire.Started // with credit or without
					}
					x.b.Receive(x.now, broker.ProcessID(rng.Uint64N(uint64(next)+1)), m)
				}
				x.flush()
				for _, id := range x.killed {
					x.b.Ended(x.now, id)
					delete(live, id)
				}
				x.killed = x.killed[:0]
				checkAccount(t, x.b)
			}
			for id := range live {
				x.b.Ended(x.now, id)
			}
			x.flush()
			for _, s := range x.b.Status() {
				if s.Used != 0 || s.InFlight != 0 || len(s.Processes) != 0 {
					t.Errorf("left behind: %+v", s)
				}
				_ = x.b.End(x.now, s.ID, 0)
			}
			x.flush()
			if err := x.b.Create(x.now, spec{ID: "all", Memory: 16 * gib, Compute: share.Whole, GPUs: []int{0, 1}}.of(0)); err != nil {
				t.Error(err)
			}
			if n := x.b.Violations(); n != 0 {
				t.Errorf("the policies found %d events wrong", n)
			}
		})
	}
}

func checkAccount(t *testing.T, b *broker.Broker) {
	t.Helper()
	var kept [2]int64
	for _, s := range b.Status() {
		var sum int64
		for _, p := range s.Processes {
			sum += p.Memory
		}
		if sum != s.Used {
			t.Fatalf("share %s uses %d bytes, its processes %d", s.ID, s.Used, sum)
		}
		page, ok := b.Page(s.ID)
		if !ok {
			t.Fatalf("share %s has no page", s.ID)
		}
		var used int64
		for _, g := range page.GPUs {
			used += int64(g.Used)
		}
		if used != s.Used {
			t.Fatalf("share %s uses %d bytes, its page has %d", s.ID, s.Used, used)
		}
		for _, p := range s.Parts {
			if p.Used > p.Kept {
				t.Fatalf("share %s uses %d of %d bytes of GPU %d", s.ID, p.Used, p.Kept, p.GPU)
			}
			kept[p.GPU] += p.Kept
		}
	}
	if max(kept[0], kept[1]) > 16*gib {
		t.Fatalf("%d bytes are given out", kept)
	}
}

// An error of the GPU that a program reports is that of its own context: it stops no other
// share, whatever the policy.
func TestFailureOfAProgramIsItsOwn(t *testing.T) {
	for _, p := range share.Policies() {
		t.Run(p.Name, func(t *testing.T) {
			x := newTable(t, broker.Config{Policy: p.Name, GPUs: gpus[:1]})
			const third = share.Whole / 7 * 2
			x.create(spec{ID: "online", Memory: gib, Compute: third, Limit: share.Whole})
			x.create(spec{ID: "offline", Class: share.Offline, Memory: gib, Compute: third, Limit: share.Whole})
			x.create(spec{ID: "bad", Class: share.Offline, Memory: gib, Compute: third, Limit: share.Whole})
			for id, name := range []string{"online", "offline", "bad"} {
				x.connect(broker.ProcessID(id+1), name, 11+id)
			}
			launch := func(process broker.ProcessID, id uint64) {
				t.Helper()
				x.send(process, wire.Message{Type: wire.Launch, ID: id, Arg: [wire.Args]uint64{80, 256, 1, 7}})
				for range 60 {
					for _, m := range x.got[process] {
						if m.Type == wire.Permit && m.ID == id {
							x.send(process, wire.Message{Type: wire.Done, ID: id, Arg: [wire.Args]uint64{1000}})
							x.send(process, wire.Message{Type: wire.Idle})
							return
						}
					}
					x.now += time.Second
					x.flush()
				}
				t.Errorf("process %d gets no permit for launch %d in a minute: %+v", process, id, x.got[process])
			}
			open := func() bool { p, _ := x.b.Page("online"); return p.GPUs[0].Gate == wire.Open }
			for round := range uint64(2) {
				if open() {
					break // the hardware keeps the shares
				}
				launch(1, round)
				launch(2, round)
				x.send(3, wire.Message{Type: wire.Failed, Arg: [wire.Args]uint64{700}})
			}
			for _, st := range x.b.Status() {
				if st.Ending || st.Evicted != "" {
					t.Errorf("share %s is ended: %q", st.ID, st.Evicted)
				}
			}
		})
	}
}

// Shares that have all memory of a GPU together run, whatever the policy: a limit is
// not memory in use.
func TestAllMemoryIsGivenOut(t *testing.T) {
	for _, p := range share.Policies() {
		t.Run(p.Name, func(t *testing.T) {
			x := newTable(t, broker.Config{Policy: p.Name, GPUs: gpus[:1]})
			half := gpus[0].Device.Memory / 2
			if p.Name == "mig" {
				half = gpus[0].Device.Memory / 8 * 3
			}
			x.create(spec{ID: "online", Memory: half, Compute: share.Percent(30), Limit: share.Whole})
			x.create(spec{ID: "offline", Class: share.Offline, Memory: half, Compute: share.Percent(30), Limit: share.Whole})
			x.connect(1, "online", 11)
			x.connect(2, "offline", 12)
			for range 100 {
				x.now += 100 * time.Millisecond
				x.flush()
			}
			if g, _ := x.b.Page("offline"); g.GPUs[0].Gate == wire.Open {
				return // the hardware keeps the shares
			}
			x.send(2, wire.Message{Type: wire.Launch, ID: 1, Arg: [wire.Args]uint64{80, 256, 1, 7}})
			for range 600 { // antman measures the online share for half a minute
				if len(x.got[2]) > 0 {
					break
				}
				x.now += 100 * time.Millisecond
				x.flush()
			}
			if m := x.last(2); m.Type != wire.Permit {
				t.Errorf("the offline share gets %+v", m)
			}
			if st := x.b.Status()[1]; st.Ending || st.Evicted != "" {
				t.Errorf("the offline share is ended: %q", st.Evicted)
			}
		})
	}
}

// The sensor of the memory, by which muxflow holds offline shares, reads what is used.
func TestMemorySensor(t *testing.T) {
	x := newTable(t, broker.Config{Policy: "muxflow", GPUs: gpus[:1]})
	half := gpus[0].Device.Memory / 2
	x.create(spec{ID: "online", Memory: half})
	x.create(spec{ID: "offline", Class: share.Offline, Memory: half})
	x.connect(1, "online", 11)
	x.connect(2, "offline", 12)
	permitted := func(id uint64) bool {
		x.send(2, wire.Message{Type: wire.Launch, ID: id, Arg: [wire.Args]uint64{80, 256, 1, 7}})
		ok := len(x.got[2]) > 0 && x.last(2).Type == wire.Permit
		x.send(2, wire.Message{Type: wire.Done, ID: id, Arg: [wire.Args]uint64{1000}})
		return ok
	}
	pass := func() {
		for range 15 {
			x.now += 100 * time.Millisecond
			x.flush()
		}
	}
	pass()
	if !permitted(1) {
		t.Error("the offline share gets no permit while nothing is used")
	}
	if !x.allocate(1, uint64(half)) || !x.allocate(2, uint64(half)) {
		t.Fatal("no memory")
	}
	pass()
	if permitted(2) {
		t.Error("the offline share gets a permit while all memory is used")
	}
	x.send(1, wire.Message{Type: wire.Free, Bytes: uint64(half)})
	pass()
	if m := x.last(2); m.Type != wire.Permit || m.ID != 2 {
		t.Errorf("the offline share gets %+v when memory is free again", m)
	}
}
