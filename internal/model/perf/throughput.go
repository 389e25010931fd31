package perf

import (
	"fmt"
	"math"
	"time"

	"github.com/dxpu-project/dxpu/pcie"
)

// Requester holds the limits on the reads that a device has in flight.
type Requester struct {
	// Tags is the number of non-posted requests that may be outstanding. The paper
	// measured about 140 on a V100 (section 3.4.3).
	Tags int
	// MRRS is Max_Read_Request_Size, the largest request.
	MRRS pcie.PayloadSize
}

// V100 is the requester of the paper's GPU (section 3.4.3).
var V100 = Requester{Tags: 140, MRRS: 128}

// Validate returns an error unless PCIe can express the values.
func (r Requester) Validate() error {
	if r.Tags < 1 || r.Tags > Gen6Tags {
		return fmt.Errorf("perf: %d tags: want 1 to %d (14-bit tags, PCIe 6.0 section 2.2.6.2)", r.Tags, Gen6Tags)
	}
	if !r.MRRS.Valid() {
		return fmt.Errorf("perf: Max_Read_Request_Size %d: want 128, 256, 512, 1024, 2048 or 4096", r.MRRS)
	}
	return nil
}

// Window returns the bytes that may be in flight: #tags x MRRS.
func (r Requester) Window() Bytes { return Bytes(r.Tags) * Bytes(r.MRRS) }

// ReadThroughput returns Equation 1 of the paper: a window of #tags x MRRS bytes per
// round trip. It returns zero for a round trip of zero or less.
func (r Requester) ReadThroughput(rtt time.Duration) BytesPerSecond {
	if rtt <= 0 {
		return 0
	}
	return BytesPerSecond(float64(r.Window()) / rtt.Seconds())
}

// TagsFor returns the least number of tags that sustains rate over the round trip.
func TagsFor(rate BytesPerSecond, mrrs pcie.PayloadSize, rtt time.Duration) int {
	return max(int(math.Ceil(float64(rate)*rtt.Seconds()/float64(mrrs))), 1)
}

// Tags that a requester of each generation can use (section 2.2.6.2 of the base
// specification): 8-bit tags up to PCIe 3.0; 10-bit tags from 4.0, of which 256 are
// reserved for completers without them; 14-bit tags from 6.0, of which 1024 are
// reserved.
const (
	Gen3Tags = 256
	Gen4Tags = 1024 - 256
	Gen6Tags = 16384 - 1024
)

// MaxTags returns the number of tags that a function of the generation can use.
func MaxTags(g pcie.Generation) int {
	switch {
	case g >= pcie.Gen6:
		return Gen6Tags
	case g >= pcie.Gen4:
		return Gen4Tags
	}
	return Gen3Tags
}

// Link is a PCIe link with its payload size.
type Link struct {
	Gen   pcie.Generation
	Lanes int              // 1, 2, 4, 8 or 16
	MPS   pcie.PayloadSize // Max_Payload_Size
}

// Gen3x16 is the link of the paper's GPUs (section 3.5). The paper does not give
// Max_Payload_Size; every device supports 128 bytes.
var Gen3x16 = Link{Gen: pcie.Gen3, Lanes: 16, MPS: 128}

// Overheads of one TLP in bytes.
const (
	framing  = 8  // Gen 3 to 5: STP token with sequence number (4) and LCRC (4), section 4.2.2.3
	header3  = 12 // completion with data: 3 DW
	header4  = 16 // memory write with 64-bit address: 4 DW
	flitSize = 256
	flitTLP  = 236 // Gen 6: TLP bytes of each 256-byte flit, section 4.2.3
)

// dataLinkShare is the share of a non-flit link that DLLPs (acknowledgements, flow
// control) leave for TLPs. Neugebauer et al. 2018 (the paper's source for its
// 7.87 Gb/s per lane) give 57.88 of 62.96 Gb/s for Gen 3 x8.
const dataLinkShare = 57.88 / 62.96

// Validate returns an error unless the link is one of PCIe 3 to 6.
func (l Link) Validate() error {
	if l.Gen < pcie.Gen3 || l.Gen > pcie.Gen6 {
		return fmt.Errorf("perf: PCIe generation %d: want 3 to 6", l.Gen)
	}
	switch l.Lanes {
	case 1, 2, 4, 8, 16:
	default:
		return fmt.Errorf("perf: %d lanes: want 1, 2, 4, 8 or 16", l.Lanes)
	}
	if !l.MPS.Valid() {
		return fmt.Errorf("perf: Max_Payload_Size %d: want 128 to 4096", l.MPS)
	}
	return nil
}

// Raw returns the rate of the physical layer in one direction after line coding
// (128b/130b for Gen 3 to 5, none for the PAM4 of Gen 6).
func (l Link) Raw() BytesPerSecond {
	rate := l.Gen.TransferRate() * 1e9 * float64(l.Lanes) / 8
	if l.Gen < pcie.Gen6 {
		rate *= 128.0 / 130
	}
	return BytesPerSecond(rate)
}

// Write returns the payload rate of posted memory writes on the link.
func (l Link) Write() BytesPerSecond { return l.payload(header4) }

// Read returns the payload rate of completions on the link, not bounded by tags.
func (l Link) Read() BytesPerSecond { return l.payload(header3) }

func (l Link) payload(header float64) BytesPerSecond {
	mps := float64(l.MPS)
	if l.Gen >= pcie.Gen6 {
		// Flit mode has neither framing nor DLLPs outside of the flit.
		return BytesPerSecond(float64(l.Raw()) * flitTLP / flitSize * mps / (mps + header))
	}
	return BytesPerSecond(float64(l.Raw()) * dataLinkShare * mps / (mps + header + framing))
}
