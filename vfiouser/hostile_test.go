package vfiouser

import (
	"context"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// FuzzServer feeds bytes to a live server, after a good VERSION and without.
// The server must answer or close for all of them, and serve the next client.
func FuzzServer(f *testing.F) {
	p := &rawPeer{}
	version := p.message(1, 0, []byte(qemuVersion))
	f.Add(version, true)
	for cmd := range uint16(20) {
		f.Add(append(p.message(cmd, 0, access(0, 0, 4, 1, 2, 3, 4)), p.message(cmd, 0, dmaMap(3, 0, 4096, 4096))...), true)
		f.Add(append(p.message(cmd, 0x10, setIRQs(arm, 2, 0, 1)), p.message(cmd, 1, nil)...), true)
	}
	f.Add([]byte{0xff}, false)
	srv := serve(f, func(c *Config) { c.Deadline = time.Second })
	f.Fuzz(func(t *testing.T, b []byte, negotiate bool) {
		srv := &fixture{Server: srv.Server, tb: t, dev: srv.dev, path: srv.path}
		c := srv.dial()
		if negotiate {
			c.ok(1, []byte(qemuVersion))
			<-srv.dev.connected
		}
		go func() {
			_, _ = c.Write(b)
			_ = c.CloseWrite()
		}()
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
			t.Fatal("the server neither answers nor closes")
		}
		_ = c.Close()
		drain(srv.dev.connected)
		drain(srv.dev.disconnected)
	})
}

func drain[T any](ch chan T) {
	for {
		select {
		case <-ch:
		default:
			return
		}
	}
}

// Posted writes that the handler keeps hold the buffer in which they arrived. The
// server reads no further when those buffers are large together.
func TestHeldBytesAreBounded(t *testing.T) {
	const size, total = testBAR2, 40
	f := serve(t)
	p, _ := f.connect()
	kept := make(chan *Access, total)
	f.dev.mu.Lock()
	f.dev.hold[2] = kept
	f.dev.mu.Unlock()
	large := p.message(10, 0x10, access(2, 0, size, make([]byte, size)...))
	small := p.message(10, 0x10, access(2, 0, 2*keepBuffer, make([]byte, 2*keepBuffer)...))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range total {
			if i == 0 {
				_, _ = p.Write(large)
			} else {
				_, _ = p.Write(small)
			}
		}
	}()
	most := 0
	for n := 0; n < total; {
		var round []*Access
		for n < total && len(round) < maxHeld/(size+dataOffset)-1 {
			a := <-kept
			round = append(round, a)
			n++
		}
		for range 1000 { // the server may read on
			runtime.Gosched()
		}
		c := round[0].conn
		c.mu.Lock()
		most = max(most, c.held)
		c.mu.Unlock()
		for _, a := range round {
			a.Reply()
		}
	}
	<-sent
	if most > maxHeld {
		t.Errorf("the handler held %d bytes, want at most %d", most, maxHeld)
	}
}

// FuzzClient feeds bytes to a live client that is doing requests.
func FuzzClient(f *testing.F) {
	p := &rawPeer{}
	version := p.message(1, 1, []byte("\x00\x00\x00\x00{}\x00"))
	f.Add(version)
	p.id = 1
	f.Add(append(version, p.message(4, 1, le(16, 3, 9, 5))...))
	f.Add(append(version, p.message(11, 0, le(uint64(0), uint64(8)))...))
	f.Add(append(version, p.message(12, 0x10, le(uint64(0), uint64(4), 1))...))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, y := socketPair(t)
		go func() {
			_, _ = x.Write(b)
			_ = x.CloseWrite()
			_, _ = io.Copy(io.Discard, x)
		}()
		cfg := ClientConfig{Timeout: time.Second, DMA: DMAFunc(func(_ *Client, r *DMARequest) { r.Reply() })}
		c, err := NewClient(bg, y, cfg)
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.DeviceInfo(bg)
		_, file, _ := c.RegionInfo(bg, 0)
		if file != nil {
			_ = file.Close()
		}
		_ = c.RegionRead(bg, 0, 0, make([]byte, 16))
		ctx, cancel := context.WithTimeout(bg, patience)
		defer cancel()
		if _ = c.Reset(ctx); ctx.Err() != nil {
			t.Fatal("the client hangs")
		}
	})
}

// TestMemoryAgainstModel compares the table with an array of bytes.
func TestMemoryAgainstModel(t *testing.T) {
	const page, pages = 4096, 16
	file, backing := memfd(t, page*pages)
	id := mustFD(t, file)
	rapid.Check(t, func(rt *rapid.T) {
		m := newMemory(pages, 1<<30)
		defer func() { _, _ = m.remove(DMAUnmap{Flags: DMAUnmapAll}) }()
		var owner [pages]int // which mapping holds the page, 0: none
		var write [pages]bool
		var at [pages]int // page of the file
		next := 1
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		span := func() (int, int) { // [lo, hi) in pages
			lo := rng.IntN(pages)
			return lo, lo + 1 + rng.IntN(min(4, pages-lo))
		}
		for range 50 {
			lo, hi := span()
			switch rng.IntN(3) {
			case 0:
				free := true
				for i := lo; i < hi; i++ {
					free = free && owner[i] == 0
				}
				off, flags := rng.IntN(pages-(hi-lo)+1), uint32(1+2*rng.IntN(2))
				_, err := m.add(DMAMap{Flags: flags, Offset: uint64(off * page), Addr: uint64(lo * page), Size: uint64((hi - lo) * page)}, id)
				if (err == nil) != free {
					rt.Fatalf("map %d..%d: %v, free %v", lo, hi, err, free)
				}
				for i := lo; err == nil && i < hi; i++ {
					owner[i], write[i], at[i] = next, flags&DMAFlagWrite != 0, off+i-lo
				}
				next++
			case 1:
				whole := true
				if lo > 0 && owner[lo] != 0 && owner[lo-1] == owner[lo] || hi < pages && owner[hi-1] != 0 && owner[hi] == owner[hi-1] {
					whole = false
				}
				_, err := m.remove(DMAUnmap{Addr: uint64(lo * page), Size: uint64((hi - lo) * page)})
				if (err == nil) != whole {
					rt.Fatalf("unmap %d..%d: %v, whole %v", lo, hi, err, whole)
				}
				for i := lo; err == nil && i < hi; i++ {
					owner[i] = 0
				}
			case 2:
				start := lo*page + rng.IntN(page)
				n := 1 + rng.IntN(hi*page-start)
				dev := rng.IntN(2) == 0
				ok := true
				for i := start / page; i <= (start+n-1)/page; i++ {
					ok = ok && owner[i] != 0 && (!dev || write[i])
				}
				p := make([]byte, n)
				for i := range p {
					p[i] = byte(rng.Uint32())
				}
				var err error
				if dev {
					err = m.Write(uint64(start), p)
				} else {
					err = m.Read(uint64(start), p)
				}
				if (err == nil) != ok {
					rt.Fatalf("access of %d at %#x: %v, want %v", n, start, err, ok)
				}
				if !ok || dev { // two pages may be the same page of the file
					continue
				}
				for i := range p {
					if a := start + i; p[i] != backing[at[a/page]*page+a%page] {
						rt.Fatalf("byte at %#x", a)
					}
				}
			}
		}
	})
}

func TestNoAllocationPerAccess(t *testing.T) {
	if raceEnabled() {
		t.Skip("the race detector allocates")
	}
	f := serve(t)
	p, conn := f.connect()
	mem, _ := memfd(t, 1<<20)
	p.ok(2, dmaMap(3, 0, 0, 1<<20), mustFD(t, mem))
	read, write := p.message(9, 0, access(0, 0, 4)), p.message(10, 0, access(7, 4, 4, 1, 2, 3, 4))
	posted := p.message(10, 0x10, access(0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8))
	buf, data := make([]byte, 64), make([]byte, 512)
	for name, op := range map[string]func(){
		"read":          func() { pingPong(t, p, read, buf[:36]) },
		"write":         func() { pingPong(t, p, write, buf[:32]) },
		"posted + read": func() { must2(t)(p.Write(posted)); pingPong(t, p, read, buf[:36]) },
		"memory write":  func() { must(t, conn.DMAWrite(4000, data, nil)) },
		"memory read":   func() { must(t, conn.DMARead(4000, data, nil)) },
	} {
		op()
		if n := testing.AllocsPerRun(200, op); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	_ = p.Close()
	<-f.dev.disconnected
	cl, _ := f.client(ClientConfig{})
	bulk := make([]byte, 3*MaxWriteData)
	for name, op := range map[string]func(){
		"client read":  func() { must(t, cl.RegionRead(bg, 0, 0, data[:4])) },
		"client write": func() { must(t, cl.RegionWrite(bg, 0, 0, data[:4])) },
		"client post":  func() { must(t, cl.PostWrite(0, 0, data[:8])); must(t, cl.RegionRead(bg, 0, 0, data[:4])) },
		"client bulk":  func() { must(t, cl.PostWrite(2, 0, bulk)); must(t, cl.RegionRead(bg, 0, 0, data[:4])) },
	} {
		op()
		if n := testing.AllocsPerRun(200, op); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func must2(tb testing.TB) func(int, error) {
	return func(_ int, err error) { must(tb, err) }
}

// The device uses the memory while the server looks at the mappings of the VMM.
func TestMapDoesNotStopTheDevice(t *testing.T) {
	f, _ := memfd(t, 1<<20)
	fd := mustFD(t, f)
	m := newMemory(3, 1<<30)
	_, err := m.add(DMAMap{Flags: 3, Addr: 0, Size: 4096}, fd)
	must(t, err)
	looked := 0
	m.shared = func(fileID) error {
		looked++
		return m.Write(0, []byte{1}) // it would wait for ever for the lock of the table
	}
	_, err = m.add(DMAMap{Flags: 3, Addr: 4096, Size: 4096}, fd) // of the same file
	must(t, err)
	g, _ := memfd(t, 4096)
	_, err = m.add(DMAMap{Flags: 3, Addr: 8192, Size: 4096}, mustFD(t, g))
	must(t, err)
	if looked != 1 {
		t.Errorf("the server looked %d times, want once for a new file", looked)
	}
}
