package link_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
)

// connectBeside returns how long a link takes to open while copies of forged arrive
// at the box, each once in an interval.
func connectBeside(t *testing.T, n *linktest.Network, every time.Duration, forged ...[]byte) time.Duration {
	t.Helper()
	start := n.Now
	for i := 0; n.Link[linktest.Host].State() != link.Up || n.Link[linktest.Box].State() != link.Up; i++ {
		if n.Now-start > 10*time.Second {
			t.Fatalf("not open within 10 s: %v, %v", n.Link[0].State(), n.Link[1].State())
		}
		if every > 0 {
			_ = n.Inject(linktest.Box, 0, forged[i%len(forged)])
		}
		n.Run(n.Now + max(every, 10*time.Microsecond))
	}
	return n.Now - start
}

// forgedHello returns a hello of a version that its receiver cannot authenticate.
func forgedHello(cfg *link.Config, version uint8, session uint64) []byte {
	h := frame.Header{Version: version, Type: frame.TypeHello, Binding: cfg.Binding, Epoch: cfg.Epoch, Initiator: session}
	return append(h.Append(nil), make([]byte, frame.HelloSize(version)+frame.TagSize)...)
}

// recordedHandshake returns the datagrams with which an earlier run of the host
// opened its link.
func recordedHandshake(t *testing.T) (sent [][]byte) {
	t.Helper()
	ends := linktest.Ends(link.CipherAES256GCM, ethernet)
	ends[linktest.Host].Session = 0x9999
	n := network(t, linktest.Config{Ends: ends}, "delay=20us", ethernet)
	n.OnDatagram = func(from linktest.Side, _ uint8, d []byte) {
		if h, _, err := frame.ParseHeader(d); err == nil && h.Type.Handshake() && from == linktest.Host {
			sent = append(sent, slices.Clone(d))
		}
	}
	connectBeside(t, n, 0)
	return sent
}

// A link opens at once while 200,000 forged or recorded handshakes a second arrive
// from its peer's address.
func TestALinkOpensDuringAFlood(t *testing.T) {
	const every = time.Second / 200_000
	ends := linktest.Ends(link.CipherAES256GCM, ethernet)
	recorded := recordedHandshake(t)
	var random [][]byte
	for i := range uint64(1000) {
		random = append(random, forgedHello(&ends[0], frame.Version2, i+1))
	}
	for _, tc := range []struct {
		name   string
		forged [][]byte
	}{
		{"of version 2", random},
		{"of version 1", [][]byte{forgedHello(&ends[0], frame.Version1, 99)}},
		{"of both", [][]byte{forgedHello(&ends[0], frame.Version2, 99), forgedHello(&ends[0], frame.Version1, 99)}},
		{"recorded hellos", recorded[:1]},
		{"recorded hellos and confirms", recorded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var worst time.Duration
			for seed := range uint64(10) {
				n := network(t, linktest.Config{Ends: ends, Seed: seed}, "delay=50us,jitter=100us", ethernet)
				// The flood has begun before, at any phase.
				n.Now = time.Duration(seed) * 1234567
				for range 5000 {
					_ = n.Inject(linktest.Box, 0, tc.forged[0])
				}
				worst = max(worst, connectBeside(t, n, every, tc.forged...))
			}
			t.Logf("open after at most %v", worst)
			if worst > 5*time.Millisecond {
				t.Errorf("open after %v, want a few round trips", worst)
			}
		})
	}
}

// A flood costs a guard a bounded number of keys, and an open link nothing: none of
// its datagrams wait.
func TestHandshakeFlood(t *testing.T) {
	for _, version := range []uint8{frame.Version1, frame.Version2} {
		t.Run(fmt.Sprintf("version %d", version), func(t *testing.T) {
			ends := linktest.Ends(link.CipherAES256GCM, ethernet)
			for i := range ends {
				ends[i].MaxVersion = version
			}
			n := up(t, linktest.Config{Ends: ends}, "delay=20us", ethernet)
			counts := map[error]int{}
			const forged = 1000
			for i := range uint64(forged) {
				counts[n.Inject(linktest.Box, 0, forgedHello(&ends[0], version, i+1))]++
			}
			switch {
			case version == frame.Version1 && (counts[link.ErrSeal] > 40 || counts[link.ErrSeal]+counts[link.ErrFlood] != forged):
				t.Errorf("of %d forged hellos: %v", forged, counts)
			case version == frame.Version2 && (counts[link.ErrSeal] != forged || n.Link[linktest.Box].Stats().Drops != link.Drops{}):
				t.Errorf("of %d forged hellos: %v; at the link %+v", forged, counts, n.Link[linktest.Box].Stats().Drops)
			}
			transfer(t, n, 200, n.Now+time.Second, nil)

			// The peer restarts during the flood.
			if err := n.Restart(linktest.Host, 0x3333); err != nil {
				t.Fatal(err)
			}
			if !n.RunUntil(n.Now+time.Second, func() bool { return n.Link[linktest.Box].State() == link.Down }) {
				t.Error("the peer's restart was not noticed after a flood")
			}
		})
	}
}

// loadedGuard returns the guard of a box that demands cookies, and a hello that it
// answers with one.
func loadedGuard(t testing.TB) (g *link.Guard, hello []byte) {
	t.Helper()
	ends := linktest.Ends(link.CipherAES256GCM, ethernet)
	guards, err := link.NewGuards(ends[linktest.Box])
	if err != nil {
		t.Fatal(err)
	}
	host, err := link.New(0, ends[linktest.Host])
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2048)
	n, _ := host.Transmit(0, buf)
	hello = buf[:n]
	for range 100 {
		_, _ = guards[0].Check(0, linktest.Address(linktest.Host, 0), hello, make([]byte, 64))
	}
	return guards[0], hello
}

func TestCookies(t *testing.T) {
	g, hello := loadedGuard(t)
	peer := linktest.Address(linktest.Host, 0)
	reply := make([]byte, 64)
	check := func(now time.Duration, from netip.AddrPort, d []byte) (frame.Header, error) {
		n, err := g.Check(now, from, d, reply)
		if n == 0 {
			return frame.Header{}, err
		}
		if n >= len(d) {
			t.Errorf("a reply of %d bytes to a hello of %d", n, len(d))
		}
		h, size, perr := frame.ParseHeader(reply[:n])
		if perr != nil || size != n || h.Type != frame.TypeCookie {
			t.Errorf("reply %x: %v", reply[:n], perr)
		}
		return h, err
	}
	first, err := check(0, peer, hello)
	if !errors.Is(err, link.ErrCookie) || first.Cookie == [16]byte{} {
		t.Fatalf("under load: %v, cookie %x", err, first.Cookie)
	}
	if again, _ := check(time.Millisecond, peer, hello); again != first {
		t.Errorf("another cookie: %+v, then %+v", first, again)
	}
	other, _ := check(0, linktest.Address(linktest.Host, 1), hello)
	if other.Cookie == first.Cookie {
		t.Error("another address has the same cookie")
	}
	// The cookie is authenticated with the rest of the header.
	if _, err := check(0, peer, withCookie(hello, first.Cookie)); !errors.Is(err, link.ErrSeal) {
		t.Errorf("a recorded hello with a cookie: %v", err)
	}
	// The load ends: no cookie is necessary.
	if _, err := check(2*time.Second, peer, hello); err != nil {
		t.Errorf("after the flood: %v", err)
	}
	if n, err := g.Check(0, peer, hello[:100], reply); n != 0 || !errors.Is(err, link.ErrMalformed) {
		t.Errorf("a truncated hello: %d, %v", n, err)
	}
}

func withCookie(hello []byte, cookie [16]byte) []byte {
	d := slices.Clone(hello)
	copy(d[36:], cookie[:])
	return d
}

// An observer answers each hello of version 2 with a cookie of its own. The host still
// reaches a box that knows only version 1.
func TestForgedCookiesKeepNoOlderPeerAway(t *testing.T) {
	ends := linktest.Ends(link.CipherAES256GCM, ethernet)
	ends[linktest.Box].MaxVersion = frame.Version1
	n := network(t, linktest.Config{Ends: ends}, "delay=50us", ethernet)
	hellos := 0
	n.OnDatagram = func(from linktest.Side, path uint8, d []byte) {
		h, _, err := frame.ParseHeader(d)
		if err != nil || from != linktest.Host || h.Version != frame.Version2 {
			return
		}
		hellos++
		h.Type, h.Cookie = frame.TypeCookie, [16]byte{byte(hellos)}
		_ = n.Inject(linktest.Host, path, h.Append(nil))
	}
	if !n.RunUntil(5*time.Second, func() bool { return n.Link[linktest.Box].State() == link.Up }) {
		t.Fatalf("not open after 5 s and %d hellos of version 2", hellos)
	}
	if hellos > 20 {
		t.Errorf("the cookies made the host send %d hellos, want a few", hellos)
	}
}

// Hellos with a valid cookie that an attacker recorded and sends again take nothing from
// the peer's.
func TestRecordedCookiesFillNothing(t *testing.T) {
	ends := linktest.Ends(link.CipherAES256GCM, ethernet)
	g, hello := loadedGuard(t)
	peer, reply := linktest.Address(linktest.Host, 0), make([]byte, 64)
	host, err := link.New(0, ends[linktest.Host])
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2048)
	_, _ = host.Transmit(0, buf) // the hello of loadedGuard
	n, err := g.Check(0, peer, hello, reply)
	if !errors.Is(err, link.ErrCookie) {
		t.Fatalf("under load: %v", err)
	}
	if err := host.Receive(0, 0, reply[:n], nil); err != nil {
		t.Fatal(err)
	}
	var sent [][]byte // with the cookie
	for now := time.Duration(0); len(sent) < 3; now += time.Millisecond {
		if n, _ := host.Transmit(now, buf); n > 0 {
			if h, _, _ := frame.ParseHeader(buf[:n]); h.Version == frame.Version2 {
				sent = append(sent, slices.Clone(buf[:n]))
			}
		}
	}
	for i, d := range sent {
		if _, err := g.Check(0, peer, d, reply); err != nil {
			t.Fatalf("hello %d with a cookie: %v", i, err)
		}
		for range 100 {
			for _, old := range sent[:i+1] {
				if _, err := g.Check(0, peer, old, reply); !errors.Is(err, link.ErrReplay) {
					t.Fatalf("a recorded one: %v, want %v", err, link.ErrReplay)
				}
			}
		}
	}
}

// The secret of the cookies changes; a cookie lives for one to two of its lives.
func TestCookiesExpire(t *testing.T) {
	for _, tc := range []struct {
		name  string
		age   time.Duration
		valid bool
	}{
		{"at once", time.Millisecond, true},
		{"in the next life", 2*time.Minute + time.Second, true},
		{"two lives later", 4*time.Minute + time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ends := linktest.Ends(link.CipherAES256GCM, ethernet)
			n := network(t, linktest.Config{Ends: ends}, "delay=20us", ethernet)
			n.SetPlan(linktest.Box, 0, plan(t, "loss=100%")) // but it hears
			recorded := recordedHandshake(t)[0]
			load := func() {
				for range 200 {
					_ = n.Inject(linktest.Box, 0, recorded)
				}
			}
			load()
			n.SetPlan(linktest.Box, 0, plan(t, "delay=20us"))
			var cookies [][]byte
			answered := 0
			n.OnDatagram = func(from linktest.Side, _ uint8, d []byte) {
				h, _, _ := frame.ParseHeader(d)
				switch {
				case h.Type == frame.TypeCookie:
					answered++
					n.SetPlan(linktest.Host, 0, plan(t, "loss=100%")) // nothing uses the cookie before
				case from == linktest.Host && h.Cookie != [16]byte{} && h.Type == frame.TypeHello:
					cookies = append(cookies, slices.Clone(d))
				}
			}
			n.RunUntil(time.Second, func() bool { return len(cookies) > 0 })
			n.Run(tc.age)
			load()
			answered = 0
			err := n.Inject(linktest.Box, 0, cookies[0])
			if tc.valid != (err == nil) || !tc.valid && answered != 1 {
				t.Errorf("%v, %d cookies", err, answered)
			}
		})
	}
}

// A cookie that answers another datagram than the last one changes nothing.
func TestForgedCookiesAreDropped(t *testing.T) {
	ends := linktest.Ends(link.CipherAES256GCM, ethernet)
	n := network(t, linktest.Config{Ends: ends}, "loss=100%", ethernet)
	sent := 0
	n.OnDatagram = func(linktest.Side, uint8, []byte) { sent++ }
	n.Run(time.Millisecond)
	cookie := frame.Header{
		Version: frame.Version2, Type: frame.TypeCookie, Binding: ends[0].Binding, Epoch: ends[0].Epoch,
		Initiator: ends[0].Session, Cookie: [16]byte{1},
	}
	for _, tc := range []struct {
		name   string
		change func(h *frame.Header)
		err    error
		sends  int
	}{
		{"another session", func(h *frame.Header) { h.Initiator++ }, link.ErrNoSession, 0},
		{"another number", func(h *frame.Header) { h.Number++ }, link.ErrNoSession, 0},
		{"the right one", func(*frame.Header) {}, nil, 1},
		{"the same again", func(*frame.Header) {}, link.ErrNoSession, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := cookie
			tc.change(&h)
			sent = 0
			if err := n.Inject(linktest.Host, 0, h.Append(nil)); !errors.Is(err, tc.err) {
				t.Errorf("got %v, want %v", err, tc.err)
			}
			n.Run(n.Now)
			if sent != tc.sends {
				t.Errorf("%d datagrams sent, want %d", sent, tc.sends)
			}
		})
	}
}

// An attacker who sees the session of a host forges cookies. Few of them reach the
// link.
func TestCookieFlood(t *testing.T) {
	ends := linktest.Ends(link.CipherAES256GCM, ethernet)
	guards, err := link.NewGuards(ends[linktest.Host])
	if err != nil {
		t.Fatal(err)
	}
	h := frame.Header{
		Version: frame.Version2, Type: frame.TypeCookie, Binding: ends[0].Binding, Epoch: ends[0].Epoch,
		Initiator: ends[0].Session, Cookie: [16]byte{1},
	}
	passed := 0
	for range 1000 {
		n, err := guards[0].Check(0, linktest.Address(linktest.Box, 0), h.Append(nil), make([]byte, 64))
		switch {
		case err == nil && n == 0:
			passed++
		case !errors.Is(err, link.ErrFlood):
			t.Fatalf("%d, %v", n, err)
		}
	}
	if passed == 0 || passed > 40 {
		t.Errorf("%d of 1000 cookies pass", passed)
	}
	if _, err := guards[0].Check(10*time.Millisecond, linktest.Address(linktest.Box, 0), h.Append(nil), nil); err != nil {
		t.Errorf("10 ms later: %v", err)
	}
}

func TestGuardDoesNotAllocate(t *testing.T) {
	g, hello := loadedGuard(t)
	ends := linktest.Ends(link.CipherAES256GCM, ethernet)
	peer, reply := linktest.Address(linktest.Host, 0), make([]byte, 64)
	for name, d := range map[string][]byte{
		"forged":   forgedHello(&ends[0], frame.Version2, 99),
		"older":    forgedHello(&ends[0], frame.Version1, 99),
		"recorded": hello,
	} {
		if n := testing.AllocsPerRun(100, func() { _, _ = g.Check(0, peer, d, reply) }); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

// BenchmarkGuard is the cost of a handshake that does not reach its link.
func BenchmarkGuard(b *testing.B) {
	g, hello := loadedGuard(b)
	ends := linktest.Ends(link.CipherAES256GCM, ethernet)
	peer, reply := linktest.Address(linktest.Host, 0), make([]byte, 64)
	for _, tc := range []struct {
		name     string
		datagram []byte
	}{
		{"forged", forgedHello(&ends[0], frame.Version2, 99)},
		{"version1", forgedHello(&ends[0], frame.Version1, 99)},
		{"recorded", hello},
	} {
		b.Run(tc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = g.Check(0, peer, tc.datagram, reply)
			}
		})
	}
}

// Sessions with the same secret have different keys: no sealed block repeats.
func TestSessionsHaveNothingInCommon(t *testing.T) {
	record := func(session uint64) (sealed [][]byte) {
		ends := linktest.Ends(link.CipherAES256GCM, ethernet)
		ends[0].Session = session
		cfg := linktest.Config{Ends: ends}
		n := network(t, cfg, "delay=20us", ethernet)
		n.OnDatagram = func(from linktest.Side, _ uint8, datagram []byte) {
			if h, size, err := frame.ParseHeader(datagram); err == nil && h.Type == frame.TypeTraffic && from == linktest.Host {
				sealed = append(sealed, bytes.Clone(datagram[size:]))
			}
		}
		transfer(t, n, 20, time.Second, nil)
		return sealed
	}
	seen := map[string]bool{}
	for session := uint64(1); session <= 4; session++ {
		for _, s := range record(session) {
			for at := 0; at+16 <= len(s); at += 16 {
				block := string(s[at : at+16])
				if seen[block] {
					t.Fatalf("session %d: a sealed block was seen before", session)
				}
				seen[block] = true
			}
		}
	}
}
