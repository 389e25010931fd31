package fault_test

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/fault"
)

// A plan for one direction of a network, and its effect on datagrams.
func Example() {
	plan, err := fault.Parse("delay=50us,mtu=1400,partition=2s-3s")
	if err != nil {
		fmt.Println(err)
		return
	}
	injector := fault.New(plan, 1) // the seed determines the random faults
	send := func(now time.Duration, size int) {
		deliveries := injector.Apply(now, make([]byte, size))
		if len(deliveries) == 0 {
			fmt.Printf("%v: %d bytes are dropped\n", now, size)
		}
		for _, d := range deliveries {
			fmt.Printf("%v: %d bytes arrive at %v\n", now, len(d.Data), d.At)
		}
	}
	send(time.Second, 1000)
	send(time.Second, 1500)
	send(2500*time.Millisecond, 1000)
	fmt.Println(plan.String())
	// Output:
	// 1s: 1000 bytes arrive at 1.00005s
	// 1s: 1500 bytes are dropped
	// 2.5s: 1000 bytes are dropped
	// delay=50µs,mtu=1400,partition=2s-3s
}
