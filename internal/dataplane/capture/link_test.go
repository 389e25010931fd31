package capture_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/tlp"
)

// conversation returns the datagrams by which two links exchange their handshake
// and n writes of up to 4 KiB. Every seventh datagram is lost.
func conversation(t *testing.T, cipher link.Cipher, n int) (packets []packet) {
	t.Helper()
	var ends [2]*link.Link
	for i, cfg := range linktest.Ends(cipher, 1400) {
		l, err := link.New(0, cfg)
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = l
	}
	sent, got := 0, 0
	buf := make([]byte, 1<<16)
	for now := time.Duration(0); got < n; now += 100 * time.Microsecond {
		if now > time.Minute {
			t.Fatalf("%d of %d TLPs have come", got, n)
		}
		for ; sent < n && sent < got+8; sent++ {
			p := &tlp.Packet{Type: tlp.MWr, Data: make([]byte, 4<<(sent%11))}
			p.SetMemory(0x100000+uint64(sent)<<12, len(p.Data))
			if err := ends[0].Send(now, p); err != nil {
				t.Fatal(err)
			}
		}
		for i, l := range ends {
			for {
				size, path := l.Transmit(now, buf)
				if size == 0 {
					break
				}
				datagram := append([]byte(nil), buf[:size]...)
				packet := udp(append([]byte(nil), datagram...))
				packet.Time = uint64(now)
				if i == 1 { // the other way: addresses and ports change places
					b := packet.Data
					copy(b[12:], []byte{192, 0, 2, 2, 192, 0, 2, 1, 7472 >> 8, 7472 & 0xff, 7471 >> 8, 7471 & 0xff})
				}
				packets = append(packets, packet)
				if len(packets)%7 == 6 {
					continue
				}
				if err := ends[1-i].Receive(now, path, datagram, func(*tlp.Packet) { got++ }); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return packets
}

// The dissector shows the contents of clear datagrams of two links and takes
// sealed ones for sealed.
func TestDissectorConversation(t *testing.T) {
	const n = 60
	fields := []string{
		"_ws.col.Protocol", "dxpu.type", "dxpu.kind", "dxpu.sealed", "dxpu.tlp.addr", "dxpu.seen_in",
		"dxpu.malformed", "dxpu.crc.bad", "dxpu.short", "_ws.lua.error",
	}
	for _, cipher := range []link.Cipher{link.CipherNone, link.CipherAES256GCM} {
		t.Run(cipher.String(), func(t *testing.T) {
			addrs, again := map[string]bool{}, 0
			for i, row := range tshark(t, layers.LinkTypeRaw, conversation(t, cipher, n), fields) {
				sealed := cipher != link.CipherNone || row["dxpu.type"] != "5"
				if row["_ws.col.Protocol"] != "DxPU" || sealed != (row["dxpu.sealed"] != "") || sealed == (row["dxpu.kind"] != "") {
					t.Errorf("datagram %d: %v", i+1, row)
				}
				for _, mark := range []string{"dxpu.malformed", "dxpu.crc.bad", "dxpu.short", "_ws.lua.error"} {
					if row[mark] != "" {
						t.Errorf("datagram %d: %s", i+1, mark)
					}
				}
				for a := range strings.SplitSeq(row["dxpu.tlp.addr"], ",") {
					addrs[a] = true
				}
				if row["dxpu.seen_in"] != "" {
					again++
				}
			}
			delete(addrs, "")
			if cipher == link.CipherNone && (len(addrs) != n || again == 0) {
				t.Errorf("%d TLPs, want %d; %d datagrams sent something again", len(addrs), n, again)
			}
			if !addrs[fmt.Sprintf("0x%016x", 0x100000)] && cipher == link.CipherNone {
				t.Errorf("the first TLP is missing: %v", addrs)
			}
		})
	}
}
