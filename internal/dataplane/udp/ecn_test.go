package udp

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

const ect0 = 2 // the sender understands marks

// A datagram says that its sender understands marks where the caller wants it, alone and in a
// batch, over IPv4, IPv6 and from one to the other; and the mark of a network is reported with
// the batch that has it.
func TestMarks(t *testing.T) {
	for _, family := range []struct {
		name, tx, rx string
		to           string
	}{
		{"IPv4", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1"},
		{"IPv6", "[::1]:0", "[::1]:0", "::1"},
		{"IPv4 through IPv6 sockets", "[::]:0", "[::]:0", "127.0.0.1"},
	} {
		for _, o := range []struct {
			name    string
			options Options
		}{{"with offload", Options{}}, {"without", Options{NoOffload: true}}} {
			t.Run(family.name+"/"+o.name, func(t *testing.T) {
				tx, rx := listenOn(t, family.tx, o.options), listenOn(t, family.rx, o.options)
				to := netip.AddrPortFrom(netip.MustParseAddr(family.to), rx.LocalAddr().Port())
				w, r := tx.NewWriter(), rx.NewReader()
				send := func(field uint8, n int) {
					t.Helper()
					if err := w.WriteParts([][]byte{make([]byte, n)}, 100, to, field); err != nil {
						t.Fatal(err)
					}
				}
				check := func(marked bool, n int) {
					t.Helper()
					for n > 0 {
						batch, _, _, err := r.Read()
						if err != nil {
							t.Fatal(err)
						}
						if n -= len(batch); r.Marked() != marked {
							t.Errorf("marked %v, want %v", r.Marked(), marked)
						}
					}
				}
				send(ect0, 300)
				check(false, 300)
				send(ce, 300) // as if a switch had marked them
				check(true, 300)
				send(0, 300)
				check(false, 300)
				send(ce, 50)
				check(true, 50)
			})
		}
	}
}

// The ECN field of the datagrams on their way.
func TestECNField(t *testing.T) {
	for _, c := range []struct {
		name string
		ecn  uint8
	}{
		{"markable", ect0},
		{"not markable", 0},
		{"marked", ce},
	} {
		t.Run(c.name, func(t *testing.T) {
			tx := listen(t, Options{})
			rx, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer rx.Close()
			raw, err := rx.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			if e := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTOS, 1) }); e != nil || err != nil {
				t.Fatal(e, err)
			}
			to := rx.LocalAddr().(*net.UDPAddr).AddrPort()
			if err := tx.NewWriter().WriteParts([][]byte{make([]byte, 100)}, 100, to, c.ecn); err != nil {
				t.Fatal(err)
			}
			oob := make([]byte, 64)
			_, n, _, _, err := rx.ReadMsgUDP(make([]byte, 200), oob)
			if err != nil {
				t.Fatal(err)
			}
			field := byte(0xff)
			for m := range controls(oob[:n]) {
				if m.level == unix.IPPROTO_IP && m.kind == unix.IP_TOS {
					field = m.data[0]
				}
			}
			if field != c.ecn {
				t.Errorf("TOS %#x, want %#x", field, c.ecn)
			}
		})
	}
}
