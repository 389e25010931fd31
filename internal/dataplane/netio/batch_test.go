package netio

import (
	"bytes"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
)

// Whatever the sizes and paths of datagrams, each arrives whole, by its path
// and in the order of its path.
func TestBatchKeepsDatagrams(t *testing.T) {
	f := open(t, PathConfig{}, PathConfig{})
	b := &Binding{group: f.NewGroup()}
	var to [2]*net.UDPConn
	for i := range to {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		to[i] = conn
		b.peers = append(b.peers, netip.MustParseAddrPort(conn.LocalAddr().String()))
		b.writers = append(b.writers, f.paths[i].conn.NewWriter())
	}
	rng := rand.New(rand.NewPCG(1, 2))
	sizes := [...]int{20, 60, 1500, 1500, 1500, 1500, 8972, 8972, 8972, 30000, udp.MaxDatagram}
	buf := make([]byte, udp.MaxDatagram+1)
	for round := range 300 {
		var sent [2][][]byte
		out := batch{binding: b}
		total := 0
		for range 1 + rng.IntN(12) {
			n, path := sizes[rng.IntN(len(sizes))], uint8(rng.IntN(8)/7) // seldom the second
			if total += n; total > 100<<10 {
				break // the receivers' buffers
			}
			datagram := bytes.Repeat([]byte{byte(round), byte(n), byte(len(sent[0]))}, n/3+1)[:n]
			copy(out.space(), datagram)
			out.add(0, n, path)
			sent[path] = append(sent[path], datagram)
		}
		out.flush(0)
		for path, want := range sent {
			for i, w := range want {
				if err := to[path].SetReadDeadline(time.Now().Add(patience)); err != nil {
					t.Fatal(err)
				}
				n, err := to[path].Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(buf[:n], w) {
					t.Fatalf("round %d, path %d, datagram %d: %d bytes came, want %d (or other bytes)", round, path, i, n, len(w))
				}
			}
		}
	}
}
