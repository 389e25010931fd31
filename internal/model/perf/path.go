package perf

import (
	"fmt"
	"time"
)

// Transfer is a way to move data between a host and a GPU.
type Transfer uint8

// Transfers.
const (
	// HtoDByRead is a DMA read by the GPU. It is non-posted, so Equation 1 bounds it.
	HtoDByRead Transfer = iota
	// HtoDByWrite is a store by the CPU or by a DMA engine of the host. It is posted,
	// so only the link bounds it (section 5.1 of the paper).
	HtoDByWrite
	// DtoHByWrite is a DMA write by the GPU. It is posted.
	DtoHByWrite
)

// Path is the connection between a host and a GPU.
type Path struct {
	Link      Link
	Requester Requester
	// NativeRTT and RTT are round trips of a PCIe memory read without and
	// with disaggregation; RTT is not less than NativeRTT.
	NativeRTT, RTT time.Duration
}

// NativeRTT is the native round trip of the paper's servers (Table 7).
const NativeRTT = 1200 * time.Nanosecond

// Validate returns an error for the first value that is out of range.
func (p Path) Validate() error {
	if err := p.Link.Validate(); err != nil {
		return err
	}
	if err := p.Requester.Validate(); err != nil {
		return err
	}
	if p.NativeRTT <= 0 || p.RTT < p.NativeRTT {
		return fmt.Errorf("perf: round trips: native %v, disaggregated %v: want 0 < native <= disaggregated", p.NativeRTT, p.RTT)
	}
	return nil
}

// Delta returns the time that disaggregation adds to a round trip (the paper's ΔRTT).
func (p Path) Delta() time.Duration { return p.RTT - p.NativeRTT }

// Throughput returns the steady rate of a large transfer: for reads the lower of
// Equation 1 and the link, for posted writes the link (term ❷).
func (p Path) Throughput(t Transfer) BytesPerSecond { return p.throughput(t, p.RTT) }

// NativeThroughput returns the rate without disaggregation.
func (p Path) NativeThroughput(t Transfer) BytesPerSecond { return p.throughput(t, p.NativeRTT) }

func (p Path) throughput(t Transfer, rtt time.Duration) BytesPerSecond {
	if t == HtoDByRead {
		return min(p.Requester.ReadThroughput(rtt), p.Link.Read())
	}
	return p.Link.Write()
}
