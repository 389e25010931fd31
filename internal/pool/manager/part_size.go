package manager

import (
	"strconv"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// milliGPU is a number of GPUs in thousandths. Quotas, guarantees and shares of tenants
// count a part of a GPU as the larger one of its shares of the memory and of the compute.
type milliGPU int64

func wholeGPUs(n uint32) milliGPU { return milliGPU(n) * placement.Whole }

// String returns the number of GPUs, as in "2" or "0.3".
func (m milliGPU) String() string {
	return strconv.FormatFloat(float64(m)/placement.Whole, 'f', -1, 64)
}

// roundedUp returns the number of GPUs, rounded up.
func (m milliGPU) roundedUp() uint32 { return uint32((m + placement.Whole - 1) / placement.Whole) }

// sizeOf returns what a spec asks for. That of a part is known exactly once its GPU is
// chosen; until then it is that of its compute.
func sizeOf(s *dxpuv1.LeaseSpec) milliGPU {
	if s.Part != nil {
		return milliGPU(s.Part.Compute)
	}
	return wholeGPUs(s.Count)
}

// size returns what a lease has or asks for.
func (l *leaseRecord) size() milliGPU {
	if l.spec.Part != nil && l.Size > 0 {
		return milliGPU(l.Size)
	}
	return sizeOf(l.spec)
}

// sizeAt returns the size that a spec has on the GPU of a box slot.
func (t *tx) sizeAt(s *dxpuv1.LeaseSpec, at placement.Ref) milliGPU {
	p := placementPart(s)
	slot := t.boxSlot(t.gpuAt(at))
	if p == nil || slot == nil || slot.Device == nil {
		return sizeOf(s)
	}
	return milliGPU(p.Size(slot.Device.MemoryBytes))
}

// requestedSize returns what some leases ask for.
func requestedSize(leases []*leaseRecord) (n milliGPU) {
	for _, l := range leases {
		n += l.size()
	}
	return n
}

// countParts adds the parts of a lease to the usage of its tenant, or subtracts them.
func (u *tenantUsage) countParts(k *leaseEntry, sign int64) {
	if k.asks.GetPart() == nil || k.gpus == 0 {
		return
	}
	u.parts += sign
	u.partMemory += sign * int64(k.asks.Part.MemoryBytes)
	u.partCompute += sign * int64(k.asks.Part.Compute)
}
