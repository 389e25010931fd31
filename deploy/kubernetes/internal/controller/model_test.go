package controller

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	resourceapi "k8s.io/api/resource/v1"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// modelManager is a manager with three hosts and three boxes, which attaches GPUs, parts of them and
// gangs, loses GPUs, fails, and is restored from a backup.
type modelManager struct {
	*awayManager // its network

	// deleting is called before a lease is released.
	deleting func(*dxpuv1.Lease)

	mu       sync.Mutex // guards the fields below
	random   *rand.Rand
	faults   bool // calls fail, GPUs are lost
	leases   map[string]*dxpuv1.Lease
	last     int                         // the number in the ID of the newest lease
	revision uint64                      // of the newest change
	restored uint64                      // the first revision after the last restore
	streams  map[chan *dxpuv1.Lease]bool // of those that watch the leases
	events   map[chan struct{}]bool      // of those that watch the events
	backup   map[string]*dxpuv1.Lease
	served   map[string]bool      // by lease and claim: those that have had their GPU
	lost     map[string]bool      // as served: those that have lost it
	ends     map[string]time.Time // by lease that waits: when it has waited in vain
	vain     map[string]bool      // by claim: those with a lease that has waited in vain, or may be as it was before
	calls    sync.WaitGroup       // that are late
	ills     ills
}

const (
	modelHosts, modelSlots = 3, 8
	modelMemory            = 80 << 30 // of a GPU, in bytes
	modelCompute           = 1000     // of a GPU, in thousandths
)

// modelBoxes are the boxes of the pool. The GPUs of one are those of a host's own machine, those of
// another are divided into partitions, and those of the last have two resource slices.
var modelBoxes = []modelBox{
	{id: "b1", gpus: 5},
	{id: "b2", gpus: 3, mode: dxpuv1.ShareMode_SHARE_MODE_TIME},
	{id: "b3", gpus: 2, mode: dxpuv1.ShareMode_SHARE_MODE_TIME, host: "h3"},
	{id: "b4", gpus: 2, mode: dxpuv1.ShareMode_SHARE_MODE_PARTITION},
	{id: "b5", gpus: 66},
}

type modelBox struct {
	id   string
	gpus int
	mode dxpuv1.ShareMode // in which they are divided, 0 for whole GPUs
	host string           // that alone may have them, "" for any
}

// slices returns the devices of each resource slice of a box, by name.
func (b modelBox) slices() (out [][]resourceapi.Device) {
	var all []resourceapi.Device
	for slot := range b.gpus {
		all = append(all, resourceapi.Device{Name: inventory.DeviceName(fmt.Sprintf("%s/%d", b.id, slot))})
	}
	slices.SortFunc(all, func(a, b resourceapi.Device) int { return cmp.Compare(a.Name, b.Name) })
	return slices.Collect(slices.Chunk(all, resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures))
}

// modelGPU is a GPU of the pool.
type modelGPU struct {
	id  string
	box modelBox
}

func modelGPUs() (out []modelGPU) {
	for _, b := range modelBoxes {
		for s := range b.gpus {
			out = append(out, modelGPU{fmt.Sprintf("%s/%d", b.id, s), b})
		}
	}
	return out
}

// change lets the model do something with a chance in per cent, while there are faults.
func (m *modelManager) change(percent int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changeLocked(percent)
}

func (m *modelManager) changeLocked(percent int) bool {
	return m.faults && m.random.IntN(100) < percent
}

// putLocked records a change of a lease, and tells those that watch.
func (m *modelManager) putLocked(l *dxpuv1.Lease) {
	m.revision++
	l.ResourceVersion = m.revision
	m.leases[l.Id] = l
	for s := range m.streams {
		select {
		case s <- proto.CloneOf(l):
		default: // it is slow: it reads all of them again
			m.breakLocked(s)
		}
	}
	m.tellLocked()
}

func (m *modelManager) breakLocked(s chan *dxpuv1.Lease) {
	if m.streams[s] {
		delete(m.streams, s)
		close(s)
	}
}

// step lets time pass: GPUs are attached, lost and released, and ended leases are forgotten.
func (m *modelManager) step() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(m.leases)) {
		l := proto.CloneOf(m.leases[id])
		if l.State != dxpuv1.LeaseState_LEASE_STATE_PENDING {
			delete(m.ends, id)
		} else if m.ends[id].IsZero() {
			m.ends[id] = time.Now().Add(l.Spec.WaitTimeout.AsDuration())
		}
		switch {
		case l.State == dxpuv1.LeaseState_LEASE_STATE_PENDING && m.placeLocked(l):
			continue
		case l.State == dxpuv1.LeaseState_LEASE_STATE_PENDING && time.Now().After(m.ends[id]):
			l.State, l.StateReason = dxpuv1.LeaseState_LEASE_STATE_FAILED, "waited in vain"
			m.vain[l.Spec.Labels[claims.LabelClaim]] = true
		case l.State == dxpuv1.LeaseState_LEASE_STATE_BINDING && m.random.IntN(3) == 0:
			l.State, l.StateReason = dxpuv1.LeaseState_LEASE_STATE_ACTIVE, ""
			for _, b := range l.Bindings {
				b.State = dxpuv1.BindingState_BINDING_STATE_ATTACHED
			}
			m.served[servedBy(l)] = true
		case l.State == dxpuv1.LeaseState_LEASE_STATE_ACTIVE && m.changeLocked(1):
			m.loseLocked(l)
		case l.State == dxpuv1.LeaseState_LEASE_STATE_RELEASING && m.random.IntN(3) == 0:
			l.State, l.Bindings = dxpuv1.LeaseState_LEASE_STATE_RELEASED, nil
		case ended(l) && m.random.IntN(20) == 0:
			delete(m.leases, id)
			continue
		default:
			continue
		}
		m.putLocked(l)
	}
	if m.changeLocked(5) {
		for s := range m.streams {
			m.breakLocked(s)
		}
	}
}

// servedBy names a lease of a claim: one that is restored may give the ID to another.
func servedBy(l *dxpuv1.Lease) string { return l.Id + " " + l.Spec.Labels[claims.LabelClaim] }

// loseLocked takes the GPU from a lease, in one of the ways there are.
func (m *modelManager) loseLocked(l *dxpuv1.Lease) {
	m.lost[servedBy(l)] = true
	switch m.random.IntN(3) {
	case 0:
		l.State, l.StateReason = dxpuv1.LeaseState_LEASE_STATE_DEGRADED, "the GPU is lost"
	case 1:
		l.State, l.StateReason = dxpuv1.LeaseState_LEASE_STATE_RELEASING, "an operator ended it"
	default:
		l.State, l.StateReason = dxpuv1.LeaseState_LEASE_STATE_PENDING, "preempted"
		for _, b := range l.Bindings {
			b.State, b.Reason = dxpuv1.BindingState_BINDING_STATE_RELEASED, dxpuv1.Reason_REASON_PREEMPTED
		}
	}
}

func (m *modelManager) hasLost(l *dxpuv1.Lease) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost[servedBy(l)]
}

// holds reports whether a lease has its GPU and its slot.
func holds(l *dxpuv1.Lease) bool {
	return l.State != dxpuv1.LeaseState_LEASE_STATE_PENDING && !ended(l)
}

func ended(l *dxpuv1.Lease) bool {
	return l.State == dxpuv1.LeaseState_LEASE_STATE_RELEASED || l.State == dxpuv1.LeaseState_LEASE_STATE_FAILED
}

// placeLocked gives a lease its GPUs, and those of its gang theirs, if all of them can have them now.
func (m *modelManager) placeLocked(l *dxpuv1.Lease) bool {
	all := []*dxpuv1.Lease{l}
	if g := l.Spec.Gang; g != nil {
		all = nil
		there := uint32(0)
		for _, o := range m.leases {
			if o.Spec.Gang.GetName() != g.Name || ended(o) || o.State == dxpuv1.LeaseState_LEASE_STATE_RELEASING {
				continue
			}
			there += o.Spec.Count
			if o.State == dxpuv1.LeaseState_LEASE_STATE_PENDING {
				all = append(all, o)
			}
		}
		if there < g.Size {
			return false
		}
	}
	var placed []*dxpuv1.Lease
	for _, o := range all {
		if !m.freeLocked(o, placed) {
			return false
		}
		placed = append(placed, o)
	}
	for _, o := range all {
		o = proto.CloneOf(o)
		o.State, o.StateReason, o.Bindings = dxpuv1.LeaseState_LEASE_STATE_BINDING, "GPUs are being attached", nil
		for _, id := range o.Spec.GpuIds {
			b := &dxpuv1.Binding{GpuId: id, HostId: o.Spec.HostId, State: dxpuv1.BindingState_BINDING_STATE_PREPARING}
			if o.Spec.Part != nil {
				b.GpuId, b.PartOfGpuId = id+"00", id
			}
			o.Bindings = append(o.Bindings, b)
		}
		m.putLocked(o)
	}
	return true
}

// freeLocked reports whether a lease may have its GPUs and slots of its host now, beside others that
// get theirs with it.
func (m *modelManager) freeLocked(l *dxpuv1.Lease, with []*dxpuv1.Lease) bool {
	slots, used := modelSlots-int(l.Spec.Count), map[string]amount{}
	for _, o := range m.leases {
		if !holds(o) && !slices.Contains(with, o) {
			continue
		}
		if o.Spec.HostId == l.Spec.HostId {
			slots -= int(o.Spec.Count)
		}
		for _, id := range o.Spec.GpuIds {
			used[id] = used[id].with(amountOf(o))
		}
	}
	return slots >= 0 && !slices.ContainsFunc(l.Spec.GpuIds, func(id string) bool { return !used[id].with(amountOf(l)).fits() })
}

// amount is a part of a GPU, in quarters of its memory and of its compute.
type amount struct{ memory, compute int }

// wholeGPU is all of a GPU, of which a part has a quarter in steps.
const (
	wholeGPU     = 4
	stepOfMemory = modelMemory / wholeGPU
	stepOfShare  = modelCompute / wholeGPU
)

func (a amount) with(o amount) amount { return amount{a.memory + o.memory, a.compute + o.compute} }

// fits reports whether a GPU has that much.
func (a amount) fits() bool { return a.memory <= wholeGPU && a.compute <= wholeGPU }

// amountOf returns what a lease has of each of its GPUs.
func amountOf(l *dxpuv1.Lease) amount {
	if p := l.Spec.Part; p != nil {
		return amount{int(p.MemoryBytes / stepOfMemory), int(p.Compute / stepOfShare)}
	}
	return amount{wholeGPU, wholeGPU}
}

// wrongPart returns an error if a lease is not for what the scheduler has allocated for its claim.
func wrongPart(spec *dxpuv1.LeaseSpec) error {
	s := shapes[spec.Labels[claims.LabelNamespace]+"/"+spec.Labels[claims.LabelName]]
	want := (*dxpuv1.Part)(nil)
	if s.part != (amount{}) {
		want = &dxpuv1.Part{MemoryBytes: uint64(s.part.memory) * stepOfMemory, Compute: uint32(s.part.compute) * stepOfShare}
		if s.mode == "partition" {
			want.Share = dxpuv1.ShareMode_SHARE_MODE_PARTITION
		}
	}
	if !proto.Equal(spec.Part, want) {
		return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("a lease of %v; the claim has %v", spec.Part, want))
	}
	return nil
}

// restore replaces the leases by those of an earlier time: the manager that returns is another one.
func (m *modelManager) restore() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.backup != nil {
		for id, l := range m.leases {
			m.vain[l.Spec.Labels[claims.LabelClaim]] = true
			if b := m.backup[id]; holds(l) && (b == nil || b.State != dxpuv1.LeaseState_LEASE_STATE_ACTIVE) {
				m.lost[servedBy(l)] = true // it may get a GPU again, but its claim has seen it without
			}
		}
		m.leases = m.backup // but no ID is given again
	}
	for _, l := range m.leases {
		m.vain[l.Spec.Labels[claims.LabelClaim]] = true // it may be in another state than its claim has seen
	}
	m.revision++
	m.restored = m.revision
	m.backup = maps.Clone(m.leases) // a lease that is recorded is not changed any more
	for s := range m.streams {
		m.breakLocked(s)
	}
}

// list returns the leases.
func (m *modelManager) list() (out []*dxpuv1.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.listLocked()
}

func (m *modelManager) listLocked() (out []*dxpuv1.Lease) {
	for _, id := range slices.Sorted(maps.Keys(m.leases)) {
		out = append(out, proto.CloneOf(m.leases[id]))
	}
	return out
}
