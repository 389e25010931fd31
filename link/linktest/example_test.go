package linktest_test

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/tlp"
)

// A link over a bad network, in virtual time.
func Example() {
	plan, err := fault.Parse("delay=20us,loss=5%,reorder=2%,dup=1%")
	if err != nil {
		fmt.Println(err)
		return
	}
	network, err := linktest.New(linktest.Config{
		Ends:  linktest.Ends(link.CipherAES256GCM, 1472),
		Paths: []linktest.Path{{Plans: [2]fault.Plan{plan, plan}}},
		Seed:  1,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	const total = 500
	stream := linktest.NewStream(1, 0, 64, 4096) // reads, and writes of two sizes
	network.OnDeliver = func(_ linktest.Side, p *tlp.Packet) {
		if err := stream.Check(p); err != nil {
			fmt.Println(err)
		}
	}
	done := network.RunUntil(10*time.Second, func() bool {
		if err := stream.Feed(network, linktest.Host, total); err != nil {
			fmt.Println(err)
		}
		return stream.Seen() == total
	})
	fmt.Println("all arrived once and in order:", done)
	fmt.Println("some datagrams were lost:", network.Link[linktest.Host].Stats().LostDatagrams > 0)
	// Output:
	// all arrived once and in order: true
	// some datagrams were lost: true
}
