package broker_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/gate"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/share"
)

// honest is a process that keeps to the protocol, with the memory that it really has.
type honest struct {
	id       broker.ProcessID
	pid      int
	has      uint64
	launched uint64
}

// A process is killed, a connection is cut, the agent is stopped or replaced between any two
// messages: the processes of a share never have more than it, and no memory, permit or launch is
// left when they have ended.
func TestKillPoints(t *testing.T) {
	for _, policy := range []string{"gemini", "gaiapi", "mps", "muxflow"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(40) {
				killPoints(t, policy, rand.New(rand.NewPCG(seed, 5)))
			}
		})
	}
}

func killPoints(t *testing.T, policy string, rng *rand.Rand) {
	t.Helper()
	const size = 4 * gib
	s := spec{ID: "a", Memory: size, Compute: share.Percent(30), GPUs: []int{0}}
	x := newTable(t, broker.Config{Policy: policy})
	x.create(s)
	var next broker.ProcessID
	var live []*honest
	connect := func(p *honest) {
		next++
		p.id, p.launched = next, 0
		x.connect(p.id, "a", p.pid)
		x.send(p.id, wire.Message{Type: wire.Holds, Bytes: p.has, Arg: [wire.Args]uint64{p.has}})
	}
	settle := func() { // all that live come back in time
		for _, p := range live {
			x.b.Closed(x.now, p.id)
			connect(p)
		}
		x.b.Settle(x.now)
		x.flush()
	}
	for range 150 {
		x.now += time.Duration(rng.Int64N(int64(2 * time.Millisecond)))
		x.flush()
		var p *honest
		if len(live) > 0 {
			p = live[rng.IntN(len(live))]
		}
		switch n := rng.IntN(24); {
		case p == nil || n < 2 && len(live) < gate.MaxProcesses:
			p = &honest{pid: int(next) + 100}
			connect(p)
			live = append(live, p)
		case n < 8:
			if bytes := rng.Uint64N(size); x.allocate(p.id, bytes) {
				p.has += bytes
			}
		case n < 11:
			bytes := rng.Uint64N(p.has + 1)
			p.has -= bytes
			x.send(p.id, wire.Message{Type: wire.Free, Bytes: bytes})
		case n < 15:
			p.launched++
			x.send(p.id, wire.Message{Type: wire.Launch, ID: p.launched, Arg: [wire.Args]uint64{100, 256, 1, 7}})
		case n < 18:
			x.send(p.id, wire.Message{Type: wire.Done, ID: p.launched, Arg: [wire.Args]uint64{1000}})
		case n < 20: // killed
			x.b.Ended(x.now, p.id)
			for i, o := range live {
				if o == p {
					live = append(live[:i], live[i+1:]...)
					break
				}
			}
		case n == 20: // its connection is cut
			x.b.Closed(x.now, p.id)
			connect(p)
		case n == 21: // the agent was stopped
			x.b.Lapse(uint64(next) + 1000)
			x.flush()
			settle()
		case n == 22: // another agent, and one process ended meanwhile
			y := newTable(t, broker.Config{Policy: policy})
			y.now = x.now
			x = y
			x.create(s)
			x.b.Restored("a")
			if rng.IntN(2) == 0 && len(live) > 1 {
				live = live[1:]
			}
			settle()
		case n == 23:
			if err := x.resize(spec{ID: "a", Memory: size, Compute: share.Percent(10 + rng.IntN(30))}); err != nil {
				t.Fatal(err)
			}
		}
		sum := uint64(0)
		for _, p := range live {
			sum += p.has
		}
		if used := x.used("a"); used != sum || sum > size {
			t.Fatalf("the processes have %d bytes of %d, and the agent counts %d", sum, size, used)
		}
	}
	for _, p := range live {
		x.b.Ended(x.now, p.id)
	}
	x.flush()
	if st := x.b.Status()[0]; st.Used != 0 || st.InFlight != 0 || len(st.Processes) != 0 {
		t.Fatalf("left behind: %+v", st)
	}
	if memory, _ := x.b.Left(0); memory != 12*gib {
		t.Fatalf("%d bytes are left beside the share", memory)
	}
	p := &honest{pid: 1}
	connect(p)
	x.send(p.id, wire.Message{Type: wire.Launch, ID: 1, Arg: [wire.Args]uint64{100, 256, 1, 7}})
	for end := x.now + 20*time.Second; x.now < end && len(x.got[p.id]) == 0; x.now += 10 * time.Millisecond {
		x.flush()
	}
	if m := x.got[p.id]; len(m) == 0 || m[0].Type != wire.Permit {
		t.Fatal("the next process gets no permit")
	}
	x.got[p.id] = nil
	if !x.allocate(p.id, size) {
		t.Fatal("the next process does not get the memory of its share")
	}
}
