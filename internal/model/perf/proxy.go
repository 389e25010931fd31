package perf

import "fmt"

// Proxy is the capacity of one DxPU_PROXY: what it can carry in each
// direction at the same time, however many GPUs stand behind it (section
// 4.3.2, Table 12).
type Proxy struct {
	HostToGPU, GPUToHost BytesPerSecond
}

// PaperProxy is the paper's: what eight GPUs got through one, where four
// still got all that they wanted (Table 12, batch size 64).
var PaperProxy = Proxy{HostToGPU: 8.4e9, GPUToHost: 3.6e9}

// Share is the traffic of all GPUs together when each of n wants want, behind
// proxies that share them evenly: linear until the proxies are full.
func Share(capacity BytesPerSecond, proxies, n int, want BytesPerSecond) BytesPerSecond {
	if proxies < 1 || n < 1 || want <= 0 {
		return 0
	}
	return min(BytesPerSecond(n)*want, BytesPerSecond(proxies)*capacity)
}

// ProxiesFor is the least number of proxies that n GPUs need so that none
// waits for another, given what each wants in both directions.
func (p Proxy) ProxiesFor(n int, toGPU, toHost BytesPerSecond) int {
	need := 1
	for _, d := range [...]struct{ want, have BytesPerSecond }{{toGPU, p.HostToGPU}, {toHost, p.GPUToHost}} {
		if d.have <= 0 {
			continue
		}
		k := float64(n) * float64(d.want) / float64(d.have)
		if c := int(k); float64(c) < k {
			need = max(need, c+1)
		} else {
			need = max(need, c)
		}
	}
	return need
}

// PeerRoute is the way between two GPUs.
type PeerRoute uint8

// Ways between two GPUs.
const (
	PeerNVLink      PeerRoute = iota // does not touch a proxy
	PeerSameProxy                    // over the PCIe bridge of one box
	PeerAcrossProxy                  // over two proxies and the network
	peerRoutesEnd                    // keeps String complete
)

// String names the route.
func (r PeerRoute) String() string {
	if r >= peerRoutesEnd {
		return fmt.Sprintf("PeerRoute(%d)", uint8(r))
	}
	return [...]string{"NVLink", "same proxy", "across proxies"}[r]
}

// AcrossProxies is the share of a single bridge's peer-to-peer bandwidth that
// is left across two proxies: read from Figure 7 of the paper (about 74 %),
// not derived.
const AcrossProxies = 0.74

// NVLinkV100 is the unidirectional rate of the six NVLink 2.0 links of a V100
// SXM2: 6 x 25 GB/s.
const NVLinkV100 BytesPerSecond = 150e9

// PeerThroughput is the bandwidth between two GPUs that each sit on link.
// Posted writes cross the proxies at AcrossProxies of the link; reads are
// bound by the requester's window over the round trip as well.
func (p Path) PeerThroughput(r PeerRoute, posted bool) BytesPerSecond {
	switch r {
	case PeerNVLink:
		return NVLinkV100
	case PeerSameProxy:
		return p.peer(posted, 1, p.NativeThroughput(HtoDByRead))
	case PeerAcrossProxy:
		return p.peer(posted, AcrossProxies, p.Throughput(HtoDByRead))
	case peerRoutesEnd:
	}
	return 0
}

func (p Path) peer(posted bool, share float64, window BytesPerSecond) BytesPerSecond {
	if posted {
		return BytesPerSecond(share) * p.Link.Write()
	}
	return min(BytesPerSecond(share)*p.Link.Read(), window)
}
