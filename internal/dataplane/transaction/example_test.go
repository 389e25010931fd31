package transaction_test

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// A device reads host memory; the host answers in completions of at most 128
// bytes.
func Example() {
	requester := transaction.NewRequester(transaction.RequesterConfig{ID: 0x0100, Tags: 32})
	memory := []byte("the quick brown fox jumps over the lazy dog")
	dst := make([]byte, 9)

	request := tlp.Packet{Type: tlp.MRd}
	request.SetMemory(4, len(dst))
	if !requester.Begin(0, 50*time.Millisecond, &request, dst, 1) {
		fmt.Println("no tag is free: try again at", requester.Wake())
	}

	var job transaction.ReadJob
	var completion tlp.Packet
	job.Start(&request, 0x0008, pcie.DefaultRCB, 128)
	buf := make([]byte, 128)
	job.Emit(&completion, buf, func(addr uint64, b []byte) pcie.CplStatus {
		copy(b, memory[addr:])
		return pcie.SuccessfulCompletion
	}, func(p *tlp.Packet) bool {
		if result, ok := requester.Complete(p); ok && result.OK() {
			fmt.Printf("%s\n", dst)
		}
		return true
	})
	// Output: quick bro
}
