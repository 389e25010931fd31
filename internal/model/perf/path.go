package perf

import (
	"fmt"
	"math"
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

// String names the transfer.
func (t Transfer) String() string {
	switch t {
	case HtoDByRead:
		return "host to device, DMA read"
	case HtoDByWrite:
		return "host to device, posted write"
	case DtoHByWrite:
		return "device to host, DMA write"
	}
	return fmt.Sprintf("Transfer(%d)", uint8(t))
}

// Posted reports whether the transfer waits for no completion.
func (t Transfer) Posted() bool { return t != HtoDByRead }

// Path is the connection between a host and a GPU.
type Path struct {
	Link      Link
	Requester Requester
	// NativeRTT and RTT are round trips of a PCIe memory read without and
	// with disaggregation; RTT is not less than NativeRTT.
	NativeRTT, RTT time.Duration
	// HostStores is the rate of the host's store engine, which bounds HtoDByWrite;
	// zero means that it is not slower than the link.
	HostStores BytesPerSecond
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
	switch t {
	case HtoDByRead:
		return min(p.Requester.ReadThroughput(rtt), p.Link.Read())
	case HtoDByWrite:
		if p.HostStores > 0 {
			return min(p.HostStores, p.Link.Write())
		}
	case DtoHByWrite:
	}
	return p.Link.Write()
}

// Latency returns term ❶ of a transfer: one ΔRTT for reads, which wait for
// completions, and half of it for posted writes (section 3.4.1).
func (p Path) Latency(t Transfer) time.Duration {
	if t.Posted() {
		return p.Delta() / 2
	}
	return p.Delta()
}

// CopyTime returns the time of a copy of n bytes: the added latency of the first
// byte, then the steady rate. It is never less than NativeCopyTime.
func (p Path) CopyTime(t Transfer, n Bytes) time.Duration {
	return addSat(p.Latency(t), p.Throughput(t).Time(n))
}

// NativeCopyTime returns the time of the same copy without disaggregation.
func (p Path) NativeCopyTime(t Transfer, n Bytes) time.Duration {
	return p.NativeThroughput(t).Time(n)
}

// addSat adds with saturation.
func addSat(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
