package hook

import (
	"slices"
	"strings"
	"testing"
)

// newCredit returns an agent that gives credit and answers no LAUNCH, and a program.
func newCredit(t *testing.T, credit uint32, env ...string) (*sharing, *sharer) {
	t.Helper()
	x := newSharing(t, 1000, env...)
	x.agent.set32(gpuGate, 1)
	x.agent.set32(gpuCredit, credit)
	x.agent.wait = true
	p := x.start(t)
	p.do(success, "init")
	return x, p
}

// kinds returns the messages without HELLO, as a word of their types: L for LAUNCH that asks,
// S for one that has started, D for DONE, I for IDLE.
func (a *scripted) kinds() string {
	var out []byte
	for _, m := range a.messages() {
		switch {
		case m.kind == launchAsked && m.arg[4] == 1:
			out = append(out, 'S')
		case m.kind == launchAsked:
			out = append(out, 'L')
		case m.kind == done:
			out = append(out, 'D')
		case m.kind == idle:
			out = append(out, 'I')
		}
	}
	return string(out)
}

// With credit a launch waits for no answer. No more than the credit are in flight, and the
// agent hears of each, before its end and before the program waits.
func TestShareCredit(t *testing.T) {
	x, p := newCredit(t, 2, "FAKE_GPU_CLOCK=step")
	a := x.agent
	p.do(success, "launch cuLaunchKernel")
	a.await("the first LAUNCH", func() bool { return a.count(launchAsked) == 1 })
	p.do(success, "launch cuLaunchKernel")
	p.send("launch cuLaunchKernel")
	a.await("the second LAUNCH", func() bool { return a.count(launchAsked) == 2 && a.count(done) == 0 })
	if n := x.gpuWord(t, gpuLaunches); n != 2 {
		t.Errorf("%d launches with a credit of 2", n)
	}
	x.setClock(t, 100_000) // the first kernel ends, and makes room
	if r, _, _ := p.answer(); r != success {
		t.Fatalf("result %d", r)
	}
	p.do(success, "sync")
	a.await("all DONEs and IDLE", func() bool { return a.count(done) == 3 && a.count(idle) == 1 })
	if got := a.kinds(); !slices.Contains([]string{"SSDSIDD", "SSSDIDD"}, got) {
		t.Errorf("messages %s", got)
	}
	log := a.messages()
	for id, want := range map[uint64]uint64{1: 100_000, 2: 100_000, 3: 100_000} {
		if i := slices.IndexFunc(log, func(m message) bool { return m.kind == done && m.id == id }); i < 0 || log[i].arg[0] != want {
			t.Errorf("DONE of launch %d: %v", id, log)
		}
	}
	p.end()
}

// A credit that is taken back, or a share that is held, makes the next launch ask.
func TestShareCreditEnds(t *testing.T) {
	for _, tc := range []struct {
		name  string
		at    int
		value uint32
	}{{"taken back", gpuCredit, 0}, {"held", gpuGate, 2}} {
		t.Run(tc.name, func(t *testing.T) {
			x, p := newCredit(t, 8)
			a := x.agent
			p.do(success, "launch cuLaunchKernel")
			p.do(success, "sync")
			a.await("DONE", func() bool { return a.count(done) == 1 })
			a.set32(tc.at, tc.value)
			p.send("launch cuLaunchKernel")
			a.await("LAUNCH", func() bool { return a.count(launchAsked) == 2 })
			m := a.last(launchAsked)
			if n := x.gpuWord(t, gpuLaunches); n != 1 || m.arg[4] != 0 {
				t.Errorf("%d launches; %+v", n, m)
			}
			a.all(message{kind: permit, id: m.id})
			if r, _, _ := p.answer(); r != success {
				t.Fatalf("result %d", r)
			}
			p.do(success, "sync")
			p.end()
		})
	}
}

// A window that is smaller than the credit holds.
func TestShareCreditInWindow(t *testing.T) {
	x, p := newCredit(t, 8)
	a := x.agent
	a.set32(gpuWindow, 1)
	const launches = 5
	for range launches {
		p.do(success, "launch cuLaunchKernel 0 1") // of one millisecond, much longer than the call
	}
	p.do(success, "sync")
	a.await("all DONEs", func() bool { return a.count(done) == launches })
	if got := strings.ReplaceAll(a.kinds(), "I", ""); got != strings.Repeat("SD", launches) {
		t.Errorf("messages %s, want each launch to end before the next one", got)
	}
	p.end()
}

// Reports that were not sent when the agent died are not told to the next one, which does not
// know their launches.
func TestShareCreditAgentDies(t *testing.T) {
	x, p := newCredit(t, 8)
	a := x.agent
	p.do(success, "take cuMemAlloc_v2 1 0") // so that HOLDS tells that the library is connected again
	p.do(success, "launch cuLaunchKernel")
	a.await("LAUNCH", func() bool { return a.count(launchAsked) == 1 })
	a.stop()
	for range 20 {
		p.do(success, "launch cuLaunchKernel")
	}
	p.do(success, "sync")
	a.mu.Lock()
	a.log = nil
	a.mu.Unlock()
	a.listen()
	a.await("the new connection", func() bool { return len(a.conns) == 1 && a.count(holds) == 1 })
	for range 20 {
		p.do(success, "launch cuLaunchKernel")
	}
	p.do(success, "sync")
	a.await("all DONEs", func() bool { return a.count(done) == 20 })
	a.mu.Lock()
	n := a.count(launchAsked)
	a.mu.Unlock()
	if n != 20 {
		t.Errorf("%d launches told to the second agent, want 20", n)
	}
	p.end()
}

// An agent that dies while threads launch finds no reports of its predecessor's connection in
// the next one, which begins with HELLO.
func TestShareCreditAgentDiesUnderLoad(t *testing.T) {
	x, p := newCredit(t, 8)
	a := x.agent
	a.wait = false
	for n := 1; n <= 10; n++ {
		a.mu.Lock()
		before := a.count(done)
		a.mu.Unlock()
		p.send("threads x 200")
		a.await("a DONE", func() bool { return a.count(done) > before })
		a.stop()
		a.listen()
		if r, _, _ := p.answer(); r != success {
			t.Fatalf("result %d", r)
		}
		// A library that is not connected yet lets launches pass untold.
		a.await("the new connection", func() bool { return len(a.conns) == 1 && a.count(holds) == n+1 }) // one was that of the first connection
	}
	p.end()
}

// Threads launch by the same credit, while it comes and goes.
func TestShareCreditThreads(t *testing.T) {
	x, p := newCredit(t, 4)
	x.agent.wait = false
	x.creditThreads(t, p, 500)
	p.end()
}

func (x *sharing) creditThreads(t *testing.T, p *sharer, rounds int) {
	t.Helper()
	a := x.agent
	ended := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.count(done)
	}
	all, alive := ended()+8*(rounds/10), true
	p.send("threads x %d", rounds)
	for i, n := uint32(0), ended(); alive && n < all; n = ended() {
		a.set32(gpuCredit, i%3)
		i++
		a.await("some progress", func() bool {
			alive = len(a.conns) > 0
			return !alive || a.count(done) > n
		})
	}
	if r, _, _ := p.answer(); r != success {
		t.Fatalf("result %d", r)
	}
	if n := ended(); n != all {
		t.Fatalf("%d DONEs, want %d", n, all)
	}
}
