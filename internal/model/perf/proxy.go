package perf

import "math"

// Proxy is the capacity of one DxPU_PROXY in both directions at the same time. It
// does not depend on the number of GPUs behind the proxy (section 4.3.2, Table 12).
type Proxy struct {
	HostToGPU, GPUToHost BytesPerSecond
}

// PaperProxy is the capacity of the paper's proxy as far as the paper shows it.
// Towards the GPUs it is the rate of eight GPUs behind one proxy (Table 12, batch size
// 64), which the paper takes for its limit; the performance in that table falls by less. Towards the host it is at least
// what one GPU reached (Table 7): the 3.6 GB/s of Table 12 are what that workload
// sends, not a limit.
var PaperProxy = Proxy{HostToGPU: 8.4e9, GPUToHost: 11.6e9}

// Share returns the total rate of n GPUs that each offer want, spread evenly over
// proxies of the given capacity: linear until the proxies are saturated.
func Share(capacity BytesPerSecond, proxies, n int, want BytesPerSecond) BytesPerSecond {
	if proxies < 1 || n < 1 || want <= 0 {
		return 0
	}
	return min(BytesPerSecond(n)*want, BytesPerSecond(proxies)*capacity)
}

// ProxiesFor returns the least number of proxies with which n GPUs do not limit each
// other, given the rate that each GPU offers in both directions.
func (p Proxy) ProxiesFor(n int, toGPU, toHost BytesPerSecond) int {
	need := 1
	for _, d := range [...]struct{ want, have BytesPerSecond }{{toGPU, p.HostToGPU}, {toHost, p.GPUToHost}} {
		if d.have <= 0 {
			continue
		}
		need = max(need, int(math.Ceil(float64(n)*float64(d.want)/float64(d.have))))
	}
	return need
}

// PeerRoute is the route between two GPUs.
type PeerRoute uint8

// Routes between two GPUs.
const (
	PeerNVLink      PeerRoute = iota // bypasses the proxies
	PeerSameProxy                    // over the PCIe bridge of one box
	PeerAcrossProxy                  // over two proxies and the network
)

// AcrossProxies is the peer-to-peer bandwidth across two proxies relative to that of
// a single bridge. It is read from Figure 7 of the paper (about 74 %), not derived.
const AcrossProxies = 0.74

// NVLinkV100 is the one-way rate of a V100 SXM2's NVLink 2.0 links: 6 x 25 GB/s.
const NVLinkV100 BytesPerSecond = 150e9

// PeerThroughput returns the bandwidth between two GPUs on links of the path's kind.
// Posted writes cross the proxies at AcrossProxies of the link's rate. The
// requester's window per round trip bounds reads in addition.
func (p Path) PeerThroughput(r PeerRoute, posted bool) BytesPerSecond {
	switch r {
	case PeerNVLink:
		return NVLinkV100
	case PeerSameProxy:
		return p.peer(posted, 1, p.NativeThroughput(HtoDByRead))
	case PeerAcrossProxy:
		return p.peer(posted, AcrossProxies, p.Throughput(HtoDByRead))
	}
	return 0
}

func (p Path) peer(posted bool, share float64, window BytesPerSecond) BytesPerSecond {
	if posted {
		return BytesPerSecond(share) * p.Link.Write()
	}
	return min(BytesPerSecond(share)*p.Link.Read(), window)
}
