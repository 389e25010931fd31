package link_test

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/tlp"
)

// Two ends of a link in one goroutine. A daemon does the same with sockets: it
// sends the datagrams of Transmit, passes received ones to Receive, and calls
// Transmit at Wake.
func Example() {
	host := link.Config{
		Binding: 1, Epoch: 1, Initiator: true, Cipher: link.CipherAES256GCM,
		Secret:    [32]byte{1, 2, 3}, // 32 random bytes that both ends have
		Session:   11,                // 64 random bits that each run of an end draws
		Ephemeral: [32]byte{7},       // 32 more
		Local:     frame.Endpoint{Node: 1, Slot: 0}, Remote: frame.Endpoint{Node: 2, Slot: 3},
		Paths: []link.PathConfig{{MTU: 1472}},
	}
	box := host
	box.Initiator, box.Session, box.Ephemeral = false, 22, [32]byte{8}
	box.Local, box.Remote = host.Remote, host.Local

	var ends [2]*link.Link
	for i, cfg := range []link.Config{host, box} {
		var err error
		if ends[i], err = link.New(0, cfg); err != nil {
			fmt.Println(err)
			return
		}
	}
	write := tlp.Packet{Type: tlp.MWr, Data: []byte("a payload of 24 bytes...")}
	write.SetMemory(0x1000, len(write.Data))
	if err := ends[0].Send(0, &write); err != nil { // it waits until the link is up
		fmt.Println(err)
	}

	buf := make([]byte, frame.MaxDatagram)
	for now := time.Duration(0); !ends[0].Idle(); now += time.Millisecond {
		for i, from := range ends {
			for {
				n, path := from.Transmit(now, buf)
				if n == 0 {
					break
				}
				_ = ends[1-i].Receive(now, path, buf[:n], func(p *tlp.Packet) { // Stats counts the errors
					fmt.Printf("%v at %#x: %s\n", p.Type, p.Addr, p.Data)
				})
			}
		}
	}
	fmt.Println(ends[0].State(), ends[1].State())
	// Output:
	// MWr at 0x1000: a payload of 24 bytes...
	// up up
}
