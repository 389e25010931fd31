package manager

import (
	"math"
	"strconv"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// milliGPU is a number of GPUs in thousandths. Quotas, guarantees and shares of tenants
// count a part of a GPU as the larger one of its shares of the memory and of the compute.
type milliGPU int64

// anySize is no bound of a number of GPUs.
const anySize milliGPU = math.MaxInt64

func wholeGPUs(n uint32) milliGPU { return milliGPU(n) * placement.Whole }

// String returns the number of GPUs, as in "2" or "0.3".
func (m milliGPU) String() string {
	return strconv.FormatFloat(float64(m)/placement.Whole, 'f', -1, 64)
}

// counted returns the number with words, as in "1 GPU" or "0.3 GPUs".
func (m milliGPU) counted(one, many string) string {
	if m == placement.Whole {
		return "1 " + one
	}
	return m.String() + " " + many
}

// roundedUp returns the number of GPUs, rounded up.
func (m milliGPU) roundedUp() uint32 { return uint32((m + placement.Whole - 1) / placement.Whole) }

// sizeOf returns what a spec asks for. That of parts is known exactly once their GPUs are
// chosen; until then it is that of their compute.
func sizeOf(s *dxpuv1.LeaseSpec) milliGPU {
	if s.Part != nil {
		return milliGPU(s.Part.Compute) * milliGPU(s.Count)
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

// sizeAt returns the size that a spec has on the GPUs of some box slots. Parts that have
// no place yet count as the largest of the others.
func (t *tx) sizeAt(s *dxpuv1.LeaseSpec, at []placement.Ref) (sum milliGPU) {
	p := placementPart(s)
	if p == nil {
		return sizeOf(s)
	}
	largest := milliGPU(p.Compute)
	at = at[:min(len(at), int(s.Count))]
	for _, r := range at {
		size := milliGPU(p.Compute)
		if slot := t.boxSlot(t.gpuAt(r)); slot != nil && slot.Device != nil {
			size = milliGPU(p.Size(slot.Device.MemoryBytes))
		}
		sum, largest = sum+size, max(largest, size)
	}
	return sum + largest*milliGPU(int(s.Count)-len(at))
}

// setSize records what a lease has, after a change of its parts.
func (t *tx) setSize(id string) {
	if l := t.leases.get(id); l.spec.Part != nil {
		t.editLease(id).Size = uint32(t.sizeAt(l.spec, t.servingSlots(id)))
	}
}

// servingSlots returns the box slots of the bindings that serve a lease.
func (t *tx) servingSlots(id string) (out []placement.Ref) {
	for _, bid := range t.bindingsOf(id) {
		if b := t.bindings.get(bid); b.serving() {
			out = append(out, b.ref())
		}
	}
	return out
}

// sizeOfMore returns the size of n more GPUs for a lease, or parts of them.
func (l *leaseRecord) sizeOfMore(n uint32) milliGPU {
	count := milliGPU(l.spec.Count)
	return (l.size()*milliGPU(n) + count - 1) / count
}

// chooseOthers chooses other GPUs for a lease, in place of those that it does not name in the
// request. Parts count as no more than the tenant may have, if there are such GPUs.
func (t *tx) chooseOthers(l *leaseRecord, req placement.Request) placement.Decision {
	d := t.chooseGPUs(req)
	if !d.OK() || l.spec.Part == nil {
		return d
	}
	size := func(at []placement.Ref) milliGPU {
		s := proto.CloneOf(l.spec)
		s.Count = uint32(len(at))
		return t.sizeAt(s, at)
	}
	most := t.mayStillHave(l.spec, l.Model)
	if most == anySize {
		return d
	}
	if most += l.size() - size(req.Together); most <= 0 || size(d.Picks) <= most {
		return d
	}
	req.MaxSize = uint64(most)
	if smaller := t.chooseGPUs(req); smaller.OK() {
		return smaller
	}
	return d
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
	n := sign * int64(k.asks.Count)
	u.parts += n
	u.partMemory += n * int64(k.asks.Part.MemoryBytes)
	u.partCompute += n * int64(k.asks.Part.Compute)
}
