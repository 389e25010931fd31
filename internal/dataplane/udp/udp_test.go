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
	c, err := Listen("127.0.0.1:0", o)
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

func TestRefusedSegmentationIsSurvived(t *testing.T) {
	tx, rx := listen(t, Options{}), listen(t, Options{})
	w := tx.NewWriter()
	if !w.refused(unix.EIO) {
		t.Fatal("EIO is not taken as a refusal")
	}
	if w.refused(unix.EPERM) {
		t.Error("EPERM is taken as a refusal")
	}
	if err := w.Write(make([]byte, 300), 100, rx.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	if s := tx.Stats(); s.GSO || s.TxDatagrams != 3 || s.GSORefused != 1 {
		t.Errorf("%+v", s)
	}
	if got := w.MaxBatch(100); got != 100 {
		t.Errorf("batches of %d bytes are still made", got)
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

func FuzzSegmentSize(f *testing.F) {
	f.Add([]byte{20, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 104, 0, 0, 0, 0xe8, 3, 0, 0})
	f.Fuzz(func(_ *testing.T, oob []byte) { segmentSize(oob) })
}
