package udp

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func listen(t testing.TB, o Options) *Conn {
	t.Helper()
	return listenOn(t, "127.0.0.1:0", o)
}

// listenOn skips the test on a machine that has not the family of the address.
func listenOn(t testing.TB, addr string, o Options) *Conn {
	t.Helper()
	c, err := Listen(addr, o)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The datagrams that arrive are those that were sent, with and without offloads.
func TestBatchArrivesAsDatagrams(t *testing.T) {
	for _, o := range []struct {
		name   string
		tx, rx Options
	}{
		{"offload on both sides", Options{}, Options{}},
		{"no offload at the sender", Options{NoOffload: true}, Options{}},
		{"no offload at the receiver", Options{}, Options{NoOffload: true}},
	} {
		for _, c := range []struct {
			name           string
			bytes, segment int
		}{
			{"one", 100, 100},
			{"two equal", 200, 100},
			{"short tail", 250, 100},
			{"many", 64 * 1000, 1000},
			{"large", 3 * 20000, 20000},
			{"largest", MaxDatagram, MaxDatagram},
		} {
			t.Run(o.name+"/"+c.name, func(t *testing.T) {
				tx, rx := listen(t, o.tx), listen(t, o.rx)
				sent := make([]byte, c.bytes)
				for i := range sent {
					sent[i] = byte(i / c.segment)
				}
				if err := tx.NewWriter().Write(sent, c.segment, rx.LocalAddr()); err != nil {
					t.Fatal(err)
				}
				r := rx.NewReader()
				var got []byte
				for len(got) < len(sent) {
					batch, segment, from, err := r.Read()
					if err != nil {
						t.Fatal(err)
					}
					if from != tx.LocalAddr() {
						t.Fatalf("from %v, want %v", from, tx.LocalAddr())
					}
					for len(batch) > 0 {
						n := min(segment, len(batch))
						if len(got)+n < len(sent) && n != c.segment {
							t.Fatalf("a datagram of %d bytes, want %d", n, c.segment)
						}
						got, batch = append(got, batch[:n]...), batch[n:]
					}
				}
				if !bytes.Equal(got, sent) {
					t.Fatal("other bytes arrived")
				}
				if s := tx.Stats(); s.TxDatagrams != uint64((c.bytes+c.segment-1)/c.segment) || s.TxErrors != 0 {
					t.Errorf("sender counted %+v", s)
				}
			})
		}
	}
}

// option sets a socket option.
func (c *Conn) option(t *testing.T, level, name, value int) {
	t.Helper()
	fd, ok := c.fd.Use()
	if !ok {
		t.Fatal("closed")
	}
	defer c.fd.Done()
	if err := unix.SetsockoptInt(int(fd), level, name, value); err != nil {
		t.Fatal(err)
	}
}

// A refused batch is sent one by one, and so are others for a while. Then the writer
// tries again. The kernel does not segment without checksums.
func TestRefusedSegmentationIsTriedAgain(t *testing.T) {
	tx, rx := listen(t, Options{}), listen(t, Options{})
	if !tx.Stats().GSO {
		t.Skip("the kernel has no UDP_SEGMENT")
	}
	w := tx.NewWriter()
	const count = 8
	write := func() {
		t.Helper()
		if err := w.Write(make([]byte, 100*count), 100, rx.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	tx.option(t, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1)
	write()
	if s := tx.Stats(); s.TxDatagrams != count || s.GSORefused != 1 || s.TxErrors != 0 {
		t.Fatalf("%+v", s)
	}
	if got := w.MaxBatch(100); got != 100 {
		t.Errorf("batches of %d bytes are still made", got)
	}
	tx.option(t, unix.SOL_SOCKET, unix.SO_NO_CHECK, 0)
	for range leastWait / count {
		write()
	}
	if got := w.MaxBatch(100); got != 100*MaxSegments {
		t.Errorf("after %d datagrams batches have %d bytes", leastWait, got)
	}
	if write(); w.gso != (offload{}) {
		t.Errorf("after a batch that was accepted: %+v", w.gso)
	}
	if s := tx.Stats(); s.GSORefused != 1 {
		t.Errorf("%+v", s)
	}
}

// An offload that is never available costs fewer and fewer attempts.
func TestRefusedSegmentationIsTriedLessOften(t *testing.T) {
	var o offload
	attempts := 0
	for range 4 << 20 / 8 {
		if o.ready(8) {
			attempts++
			o.refused()
		}
	}
	if attempts < 8 || attempts > 14 || o.wait != mostWait {
		t.Errorf("%d attempts in 4 Mi datagrams, the last wait is %d", attempts, o.wait)
	}
	if o.ready(1) {
		t.Error("a single datagram is segmented")
	}
}

// A datagram that exceeds the MTU is refused, not fragmented, on sockets of each
// kind. The loopback interface has 65536 bytes: more than IPv4 can use, less than
// IPv6.
func TestNothingIsFragmented(t *testing.T) {
	tx := listenOn(t, "[::1]:0", Options{})
	w := tx.NewWriter()
	mtu, err := MTU(tx.LocalAddr().Addr())
	if err != nil {
		t.Fatal(err)
	}
	if mtu >= MaxDatagram {
		t.Skipf("the loopback interface takes %d bytes", mtu)
	}
	if err := w.Write(make([]byte, mtu), mtu, tx.LocalAddr()); err != nil {
		t.Errorf("a datagram of the MTU: %v", err)
	}
	if err := w.Write(make([]byte, mtu+1), mtu+1, tx.LocalAddr()); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a datagram of a byte more than the MTU: %v", err)
	}
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		c, err := Listen(addr, Options{})
		if err != nil {
			t.Fatal(err)
		}
		fd, _ := c.fd.Use()
		four, err4 := unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER)
		six, err6 := unix.IPV6_PMTUDISC_PROBE, error(nil)
		if !c.ip4 {
			six, err6 = unix.GetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER)
		}
		c.fd.Done()
		if four != unix.IP_PMTUDISC_PROBE || six != unix.IPV6_PMTUDISC_PROBE || err4 != nil || err6 != nil {
			t.Errorf("%s: IPv4 %d %v, IPv6 %d %v", addr, four, err4, six, err6)
		}
		_ = c.Close()
	}
}

// The reader learns which destinations refuse datagrams, whichever call the kernel
// tells first, and a datagram for another destination is sent all the same.
func TestRefusedPort(t *testing.T) {
	for _, host := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(host, func(t *testing.T) {
			tx := listenOn(t, host, Options{})
			gone, err := Listen(host, Options{})
			if err != nil {
				t.Fatal(err)
			}
			to := gone.LocalAddr()
			if err := gone.Close(); err != nil {
				t.Fatal(err)
			}
			w, r := tx.NewWriter(), tx.NewReader()
			for _, written := range []int{1, 3, 40} { // the second write meets the report on the first
				for range written {
					if err := w.Write([]byte("to a closed port"), 100, to); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
						t.Fatal(err)
					}
				}
				if err := w.Write([]byte("to myself"), 100, tx.LocalAddr()); err != nil {
					t.Errorf("after %d datagrams to a closed port: %v", written, err)
				}
				refused, arrived := 0, 0
				for arrived == 0 || refused == 0 {
					batch, _, _, err := r.Read()
					switch {
					case errors.Is(err, ErrRefused):
						if refused++; len(r.Refused()) != 1 || r.Refused()[0] != to {
							t.Fatalf("%v refused, want %v", r.Refused(), to)
						}
					case err != nil:
						t.Fatal(err)
					case string(batch) == "to myself":
						arrived++
					}
				}
			}
		})
	}
}

// More reports than one call processes arrive before each call. The data comes through,
// and so do the reports while there is data.
func TestReportsDoNotStarveData(t *testing.T) {
	c := listen(t, Options{})
	gone := listen(t, Options{})
	closed := gone.LocalAddr()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	w, r := c.NewWriter(), c.NewReader()
	const rounds = 20
	data, refused := 0, 0
	for range rounds {
		for range 2 * maxReports {
			_ = w.Write([]byte("to a closed port"), 100, closed)
		}
		if err := w.Write([]byte("to myself"), 100, c.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		batch, _, _, err := r.Poll()
		switch {
		case errors.Is(err, ErrRefused):
			refused++
		case err != nil:
			t.Fatal(err)
		case string(batch) == "to myself":
			data++
		}
	}
	if data < rounds/2-1 || refused < rounds/2-1 {
		t.Errorf("%d calls returned data and %d refusals, want half of %d each", data, refused, rounds)
	}
}

func TestCloseEndsRead(t *testing.T) {
	c := listen(t, Options{})
	done := make(chan error)
	go func() {
		_, _, _, err := c.NewReader().Read()
		done <- err
	}()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read ended with %v", err)
	}
}

func TestMTU(t *testing.T) {
	if n, err := MTU(netip.MustParseAddr("127.0.0.9")); err != nil || n != MaxDatagram {
		t.Errorf("loopback: %d, %v", n, err)
	}
	if n, err := MTU(netip.IPv4Unspecified()); err != nil || n != 1472 {
		t.Errorf("unspecified: %d, %v", n, err)
	}
	if _, err := MTU(netip.MustParseAddr("203.0.113.77")); err == nil {
		t.Error("an address of no interface has an MTU")
	}
}

func TestNoAllocation(t *testing.T) {
	tx, rx := listen(t, Options{}), listen(t, Options{})
	w, r := tx.NewWriter(), rx.NewReader()
	buf := make([]byte, 3000)
	to := rx.LocalAddr()
	n := testing.AllocsPerRun(100, func() {
		if err := w.Write(buf, 1000, to); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < len(buf); {
			batch, _, _, err := r.Read()
			if err != nil {
				t.Fatal(err)
			}
			got += len(batch)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per batch", n)
	}
}

func FuzzControls(f *testing.F) {
	f.Add([]byte{20, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 104, 0, 0, 0, 0xe8, 3, 0, 0})
	f.Add([]byte{32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 111, 0, 0, 0, 2, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, oob []byte) {
		readControls(oob)
		refusal(oob)
	})
}
