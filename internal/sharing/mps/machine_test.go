package mps

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/share"
)

var (
	t0    = time.Unix(1_700_000_000, 0)
	whole = Want{Run: true, UID: 1000, Others: Limits{Share: share.Whole / 10}, Memory: 40 << 30}
)

// world is a service that does what the machine asks, without a delay.
type world struct {
	t       *testing.T
	m       Machine
	now     time.Time
	want    Want
	seen    Seen
	next    int // process ID
	actions []string
	notices []Notice
	limits  Limits // of the server
	refuse  map[Verb]bool
}

func newWorld(t *testing.T) *world {
	return &world{t: t, now: t0, want: whole, next: 100, refuse: make(map[Verb]bool)}
}

// step runs the machine once, now, and carries out what it asks.
func (w *world) step() {
	w.t.Helper()
	for _, a := range w.m.Step(w.now, w.want, w.seen) {
		w.actions = append(w.actions, a.String())
		var err error
		if w.refuse[a.Verb] {
			err = errors.New("refused")
		} else {
			w.do(a)
		}
		w.m.Done(a, err)
		if err != nil {
			break
		}
	}
	w.notices = append(w.notices, w.m.Notices()...)
}

func (w *world) do(a Action) {
	switch a.Verb {
	case StartDaemon:
		w.seen = Seen{Daemon: Answers}
	case StartServer:
		w.next++
		w.seen.Servers = append(w.seen.Servers, Server{PID: w.next, Status: StatusInitializing})
	case SetShare:
		w.limits.Share = a.Limits.Share
	case SetMemory:
		w.limits.Memory = a.Limits.Memory
	case ShutdownServer:
		w.seen.Servers = slices.DeleteFunc(w.seen.Servers, func(s Server) bool { return s.PID == a.Server })
	case TerminateClient:
		for i := range w.seen.Servers {
			w.seen.Servers[i].Clients = slices.DeleteFunc(w.seen.Servers[i].Clients, func(p int) bool { return p == a.Client })
		}
	case Quit, KillDaemon:
		w.seen = Seen{}
	case SetDefaultShare, SetDefaultMemory:
	}
}

// pass lets time pass, in steps at the machine's wake-ups.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	for end := w.now.Add(d); w.now.Before(end); w.now = w.m.Wake() {
		w.step()
	}
}

func (w *world) state(want State) {
	w.t.Helper()
	if got, _ := w.m.State(); got != want {
		w.t.Fatalf("state %v, want %v; actions %q", got, want, w.actions)
	}
}

// active brings the service to work.
func (w *world) active() *world {
	w.t.Helper()
	w.pass(time.Second)
	w.state(Initializing)
	w.seen.Servers[0].Status = StatusActive
	w.pass(time.Second)
	w.state(Active)
	return w
}

func (w *world) admit(id ClientID, offline bool, percent share.PPM) {
	w.t.Helper()
	c := Client{ID: id, PID: 1000 + int(id), Offline: offline, Limits: Limits{Share: percent * share.Whole / 100, Memory: 8 << 30}}
	if err := w.m.Admit(w.now, c); err != nil {
		w.t.Fatal(err)
	}
}

// join admits a client and connects it.
func (w *world) join(id ClientID, offline bool, percent share.PPM) {
	w.t.Helper()
	w.admit(id, offline, percent)
	w.pass(time.Second)
	w.told(Notice{Kind: Go, Client: id, PID: 1000 + int(id)})
	w.connect(id)
	w.pass(time.Second)
	w.told(Notice{Kind: Joined, Client: id, PID: 1000 + int(id)})
}

func (w *world) connect(id ClientID) {
	s := &w.seen.Servers[0]
	s.Clients = append(slices.Clone(s.Clients), 1000+int(id))
}

func (w *world) disconnect(id ClientID) {
	w.do(Action{Verb: TerminateClient, Client: 1000 + int(id)})
	w.m.Leave(w.now, id)
}

func (w *world) told(n Notice) {
	w.t.Helper()
	if !slices.Contains(w.notices, n) {
		w.t.Fatalf("no notice %+v in %+v", n, w.notices)
	}
}

func (w *world) count(prefix string) int {
	n := 0
	for _, a := range w.actions {
		if strings.HasPrefix(a, prefix) {
			n++
		}
	}
	return n
}

func TestStart(t *testing.T) {
	w := newWorld(t).active()
	want := []string{
		"start the control daemon", "set_default_active_thread_percentage 10", "start_server -uid 1000",
		"set_active_thread_percentage 101 10", "set_device_pinned_mem_limit 101 0 40960M",
	}
	if !slices.Equal(w.actions, want) {
		t.Errorf("actions %q\nwant %q", w.actions, want)
	}
}

// Each client gets its own limits: the next one waits until it is connected, and
// others get the default again afterwards.
func TestAdmitInTurn(t *testing.T) {
	w := newWorld(t).active()
	w.admit(1, false, 60)
	w.admit(2, true, 25)
	w.pass(5 * time.Second)
	if w.limits != (Limits{600_000, 8 << 30}) || slices.ContainsFunc(w.notices, func(n Notice) bool { return n.Client == 2 }) {
		t.Fatalf("limits %+v, notices %+v", w.limits, w.notices)
	}
	w.connect(1)
	w.pass(time.Second)
	w.told(Notice{Kind: Go, Client: 2, PID: 1002})
	if w.limits != (Limits{250_000, 8 << 30}) {
		t.Fatalf("limits %+v", w.limits)
	}
	w.connect(2)
	w.pass(time.Second)
	if w.limits != (Limits{100_000, 40 << 30}) {
		t.Fatalf("limits of others %+v", w.limits)
	}
}

// A client that does not connect does not hold up the others for ever.
func TestAdmitLate(t *testing.T) {
	w := newWorld(t).active()
	w.admit(1, false, 60)
	w.admit(2, false, 25)
	w.pass(joinLimit + 2*time.Second)
	w.told(Notice{Kind: Refused, Client: 1, PID: 1001, Reason: ReasonLate})
	w.told(Notice{Kind: Go, Client: 2, PID: 1002})
}

// A server that refuses the limits admits nothing.
func TestLimitsRefused(t *testing.T) {
	w := newWorld(t).active()
	w.refuse[SetMemory] = true
	w.admit(1, false, 60)
	w.pass(time.Minute)
	if slices.ContainsFunc(w.notices, func(n Notice) bool { return n.Kind == Go }) {
		t.Fatal("a client may connect without its limits")
	}
	w.refuse[SetMemory] = false
	w.pass(time.Second)
	w.told(Notice{Kind: Go, Client: 1, PID: 1001})
}

func TestEarly(t *testing.T) {
	w := newWorld(t).active()
	w.connect(1)
	w.admit(1, false, 60)
	w.pass(time.Second)
	w.told(Notice{Kind: End, Client: 1, PID: 1001, Reason: ReasonEarly})
}

func TestResize(t *testing.T) {
	w := newWorld(t).active()
	w.join(1, false, 60)
	w.join(2, true, 25)
	for id := range ClientID(2) {
		if err := w.m.Resize(w.now, id+1, Limits{Share: 400_000, Memory: 8 << 30}); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.m.Stale(); !slices.Equal(got, []ClientID{1, 2}) {
		t.Errorf("stale %v", got)
	}
	w.step()
	w.told(Notice{Kind: End, Client: 2, PID: 1002, Reason: ReasonShare})
	if slices.ContainsFunc(w.notices, func(n Notice) bool { return n.Kind == End && n.Client == 1 }) {
		t.Error("an online client was ended for a new share")
	}
	// The offline client ends and comes back.
	w.disconnect(2)
	w.admit(2, true, 40)
	w.pass(time.Second)
	if w.limits.Share != 400_000 {
		t.Errorf("share %d after the restart", w.limits.Share)
	}
}

// A client that does not end is terminated by MPS first: the kill of a client whose
// kernels run would fail all clients.
func TestEndByForce(t *testing.T) {
	w := newWorld(t).active()
	w.join(1, true, 25)
	if err := w.m.Resize(w.now, 1, Limits{Share: 400_000}); err != nil {
		t.Fatal(err)
	}
	w.pass(endGrace + 3*time.Second)
	if w.count("terminate_client 101 1001") != 1 {
		t.Fatalf("actions %q", w.actions)
	}
	w.pass(endGrace + 3*time.Second)
	w.told(Notice{Kind: End, Client: 1, PID: 1001, Reason: ReasonShare, Force: true})
}

func TestFault(t *testing.T) {
	w := newWorld(t).active()
	w.join(1, false, 60)
	w.join(2, true, 25)
	w.seen.Servers[0].Status = StatusFault
	w.pass(time.Second)
	w.state(Fault)
	w.told(Notice{Kind: End, Client: 1, PID: 1001, Reason: ReasonFault})
	w.told(Notice{Kind: End, Client: 2, PID: 1002, Reason: ReasonFault})
	w.admit(3, false, 50)
	w.pass(5 * time.Second)
	w.disconnect(1)
	w.disconnect(2)
	w.pass(5 * time.Second)
	if w.count("shutdown_server") != 0 {
		t.Fatalf("the server had no time to recover: %q", w.actions)
	}
	w.seen.Servers[0].Status = StatusActive
	w.pass(time.Second)
	w.told(Notice{Kind: Go, Client: 3, PID: 1003})
}

// A server that does not recover is shut down, and then its daemon is killed; clients
// that hang meanwhile are killed.
func TestFaultWithoutRecovery(t *testing.T) {
	w := newWorld(t).active()
	w.join(1, false, 60)
	w.seen.Servers[0].Status = StatusFault
	w.refuse[ShutdownServer] = true
	w.pass(2*endGrace + 2*time.Second)
	w.told(Notice{Kind: End, Client: 1, PID: 1001, Reason: ReasonFault, Force: true})
	if w.count("terminate_client") != 0 {
		t.Error("a faulty server cannot terminate clients")
	}
	w.pass(3 * time.Minute)
	if w.count("shutdown_server 101 -f") == 0 || w.count("kill the control daemon") != 1 || w.count("start the control daemon") != 2 {
		t.Fatalf("actions %q", w.actions)
	}
	w.state(Initializing)
}

// Faults in a row make the service rest, longer each time, and it returns by itself.
func TestRest(t *testing.T) {
	w := newWorld(t).active()
	for round := range 2 {
		for range maxFaults {
			w.seen.Servers[0].Status = StatusFault
			w.pass(time.Second)
			w.seen.Servers[0].Status = StatusActive
			w.pass(time.Second)
		}
		w.state(Held)
		w.admit(ClientID(round), true, 20)
		rest := restBase << round
		w.pass(rest - 20*time.Second)
		w.state(Held)
		w.pass(20 * time.Second)
		w.state(Active)
		w.told(Notice{Kind: Go, Client: ClientID(round), PID: 1000 + round})
		w.m.Leave(w.now, ClientID(round))
	}
	// After a while without faults, the next rest is short again.
	w.pass(2 * stableAfter)
	if w.m.rested != 0 {
		t.Error("the rests are remembered for ever")
	}
}

func TestServerGone(t *testing.T) {
	w := newWorld(t).active()
	w.join(1, false, 60)
	w.admit(2, false, 30)
	w.seen.Servers = nil
	w.pass(time.Second)
	w.told(Notice{Kind: End, Client: 1, PID: 1001, Reason: ReasonServer})
	w.m.Leave(w.now, 1)
	w.state(Initializing)
	w.seen.Servers[0].Status = StatusActive
	w.pass(time.Second)
	w.told(Notice{Kind: Go, Client: 2, PID: 1002})
}

func TestSilent(t *testing.T) {
	w := newWorld(t).active()
	w.join(1, false, 60)
	before := w.seen
	w.seen = Seen{Daemon: Mute}
	w.pass(silentLimit / 2)
	w.state(Silent)
	w.seen = before
	w.pass(time.Second)
	w.state(Active)
	w.seen = Seen{Daemon: Mute}
	w.pass(silentLimit + time.Second)
	if w.count("kill the control daemon") != 1 {
		t.Fatalf("actions %q", w.actions)
	}
	w.told(Notice{Kind: End, Client: 1, PID: 1001, Reason: ReasonServer})
}

// A daemon that does not start is tried again, later each time.
func TestDaemonDoesNotStart(t *testing.T) {
	w := newWorld(t)
	w.refuse[StartDaemon] = true
	w.pass(10 * time.Minute)
	if n := w.count("start the control daemon"); n < 3 || n > 6 {
		t.Errorf("%d attempts in ten minutes", n)
	}
}

func TestStop(t *testing.T) {
	w := newWorld(t).active()
	w.join(1, false, 60)
	w.admit(2, false, 30)
	w.want.Run = false
	w.pass(time.Second)
	w.state(Draining)
	w.told(Notice{Kind: End, Client: 1, PID: 1001, Reason: ReasonStop})
	w.told(Notice{Kind: Refused, Client: 2, PID: 1002, Reason: ReasonStop})
	if w.count("quit") != 0 {
		t.Fatal("quit with a client")
	}
	w.disconnect(1)
	w.pass(time.Second)
	w.state(Stopped)
	if w.count("quit") != 1 {
		t.Errorf("actions %q", w.actions)
	}
}

// A machine that takes over a running service knows the clients of the former one.
func TestTakeOver(t *testing.T) {
	w := newWorld(t).active()
	w.join(1, false, 60)
	w.m, w.actions, w.notices = Machine{}, nil, nil
	if err := w.m.Admit(w.now, Client{ID: 1, PID: 1001, Running: true, Limits: Limits{Share: 600_000}}); err != nil {
		t.Fatal(err)
	}
	w.pass(time.Minute)
	w.state(Active)
	if w.count("start") != 0 || slices.ContainsFunc(w.notices, func(n Notice) bool { return n.Kind == End }) {
		t.Errorf("actions %q, notices %+v", w.actions, w.notices)
	}
}

func TestBounds(t *testing.T) {
	var m Machine
	for id := range ClientID(MaxClients) {
		if err := m.Admit(t0, Client{ID: id, Limits: Limits{Share: 10_000}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Admit(t0, Client{ID: 99, Limits: Limits{Share: 10_000}}); !errors.Is(err, ErrFull) {
		t.Errorf("one client too many: %v", err)
	}
	m.Leave(t0, 0)
	for _, l := range []Limits{{}, {Share: 9_999}, {Share: share.Whole + 1}, {Share: share.Whole, Memory: -1}, {Share: share.Whole, Memory: 1000}} {
		if m.Admit(t0, Client{ID: 0, Limits: l}) == nil {
			t.Errorf("%+v was admitted", l)
		}
	}
	if m.Admit(t0, Client{ID: 1, Limits: Limits{Share: 10_000}}) == nil {
		t.Error("a client was admitted twice")
	}
}

// TestProperty lets a service fail at random. Go is given only with the client's
// limits set, and to one client at a time.
func TestProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		limits := make(map[ClientID]Limits)
		next := ClientID(0)
		for range rapid.IntRange(1, 80).Draw(rt, "n") {
			switch rapid.IntRange(0, 7).Draw(rt, "event") {
			case 0:
				next++
				limits[next] = Limits{Share: share.PPM(rapid.IntRange(1, 100).Draw(rt, "percent")) * 10_000, Memory: 1 << 30}
				if w.m.Admit(w.now, Client{ID: next, PID: 1000 + int(next), Limits: limits[next]}) != nil {
					delete(limits, next)
				}
			case 1:
				if next > 0 && len(w.seen.Servers) > 0 {
					w.connect(next)
				}
			case 2:
				if next > 0 {
					w.disconnect(ClientID(rapid.IntRange(1, int(next)).Draw(rt, "gone")))
				}
			case 3, 4:
				for i := range w.seen.Servers {
					w.seen.Servers[i].Status = rapid.SampledFrom([]Status{StatusActive, StatusActive, StatusFault, StatusInitializing}).Draw(rt, "status")
				}
			case 5:
				w.seen.Daemon = rapid.SampledFrom([]Reach{Absent, Mute, Answers, Unasked}).Draw(rt, "daemon")
				if w.seen.Daemon != Answers {
					w.seen.Servers = nil
				}
			default:
				w.now = w.now.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(rt, "later")))
			}
			w.notices = nil
			w.step()
			for _, n := range w.notices {
				if n.Kind == Go && w.limits != limits[n.Client] {
					rt.Fatalf("client %d may go with %+v, want %+v", n.Client, w.limits, limits[n.Client])
				}
			}
			calls := 0
			for _, c := range w.m.clients {
				if c.phase == called {
					calls++
				}
			}
			if calls > 1 || len(w.m.clients) > MaxClients {
				rt.Fatalf("%d clients connect at the same time", calls)
			}
		}
	})
}

func ExampleAction() {
	fmt.Println(Action{Verb: SetShare, Server: 28941, Limits: Limits{Share: 333_000}}.Command())
	// Output: set_active_thread_percentage 28941 33.3
}
