package manager

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

type hostSlotRef struct {
	host string
	slot uint32
}

type bindingEntry struct {
	lease         string
	gpu           placement.Ref
	slot          hostSlotRef
	epoch         uint64
	open          bool      // not released
	serving       bool      // it serves its lease or is being made for it
	moving        bool      // it is to follow another and its migration is not over
	holdsGPU      bool      // it occupies its GPU
	unreplaced    bool      // its host slot is reserved for its replacement
	takesHostSlot bool      // its host slot is not free
	inHostSlot    bool      // bindingsByHostSlot has it
	crosses       [2]string // the racks whose uplinks it uses; empty: none
	request       string    // of the call that replaced it
	moveRequest   string    // of the call that began its migration
	// What others of its GPU depend on: its part, and whether it waits or is waited for.
	part            partRecord
	awaits, promise string
}

type requestKey struct{ tenant, id string }

type leaseEntry struct {
	request     requestKey
	tenant      string      // while it is not over
	shape       string      // while it waits
	gang        gangKey     // while it is not over
	affinity    affinityKey // while it has GPUs
	incomplete  bool        // it waits for leases of its gang
	promised    bool        // GPUs are promised to it
	sleeps      bool        // it begins later
	spec        *dxpuv1.LeaseSpec
	asks        *dxpuv1.LeaseSpec // while it is not over
	queueKey    queueKey
	gpus        milliGPU
	model       string
	holding     bool
	degraded    bool
	preemptible bool
	ended       time.Time // when it is over
}

// queueKey orders pending leases: by priority, then by age.
type queueKey struct {
	priority int32
	created  int64 // ns since 1970
	id       string
}

func (a queueKey) compare(b queueKey) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.created, b.created), compareLeaseIDs(a.id, b.id))
}

type endedLease struct {
	at time.Time
	id string
}

func (a endedLease) compare(b endedLease) int {
	return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.id, b.id))
}

// endStep ends a step of a transaction: the rules do not change the records any more that edit
// has returned in it. So reindex need not look at them again; there may be thousands. The nodes
// that depend on them wait for reindex: they are the same for many steps.
func (t *tx) endStep() {
	t.indexRecords()
	clear(t.leases.touched)
	clear(t.bindings.touched)
	clear(t.nodes.touched)
}

// reindexAll brings the index up to date with all records that the transaction has changed.
func (t *tx) reindexAll() {
	t.leases.touch()
	t.bindings.touch()
	t.nodes.touch()
	for id := range t.connectivityChanged {
		t.nodes.touched[id] = true
	}
	t.reindex()
}

// reindex brings the index up to date with the records that the present step of the transaction
// has changed so far. It compares all of them each time, because a record may change again.
func (t *tx) reindex() {
	if t.indexFrozen {
		return
	}
	t.indexRecords()
	stale := maps.Clone(t.staleNodes)
	clear(t.staleNodes)
	t.indexNodes(stale)
	if len(t.tenants.unsettled) > 0 {
		t.capacityGrew = true // a quota may allow more
		clear(t.tenants.unsettled)
	}
}

// reindexBindings is reindex for callers that read nothing of the nodes: those wait for reindex.
func (t *tx) reindexBindings() {
	if !t.indexFrozen {
		t.indexRecords()
	}
}

// indexRecords brings the index of leases and bindings up to date, and adds the nodes that
// depend on them to staleNodes.
func (t *tx) indexRecords() {
	stale := t.staleNodes
	for id := range t.leases.touched {
		t.indexLease(id)
		for _, b := range t.bindingsByLease[id] {
			t.indexBinding(b, stale)
		}
	}
	for id := range t.bindings.touched {
		t.indexBinding(id, stale)
		t.indexSuccessor(id, stale)
	}
	for id := range t.nodes.touched {
		stale[id] = true
		if n := t.nodes.get(id); n != nil && n.Rack != t.indexedNodes[id].rack {
			for b := range maps.Clone(t.bindingsByNode[id]) {
				t.indexBinding(b, stale) // it may cross other uplinks
				t.indexSuccessor(b, stale)
			}
		}
	}
}

// indexSuccessor updates the entry of the successor in the migration of a binding: the
// uplinks that it uses depend on the source.
func (t *tx) indexSuccessor(source string, stale map[string]bool) {
	b := t.bindings.get(source)
	if b == nil {
		return
	}
	for _, id := range t.bindingsByHostSlot[hostSlotRef{b.HostID, b.HostSlot}] {
		if t.bindings.get(id).Follows == source {
			t.indexBinding(id, stale)
			return
		}
	}
}

// indexNodes brings the index up to date with nodes and those that depend on them.
func (t *tx) indexNodes(stale map[string]bool) {
	for len(stale) > 0 {
		next := map[string]bool{}
		for id := range stale {
			for _, other := range t.indexNode(id) {
				next[other] = true
			}
		}
		stale = next
	}
}

func (t *tx) bindingEntry(b *bindingRecord) bindingEntry {
	k := bindingEntry{
		lease: b.LeaseID, gpu: b.ref(), slot: hostSlotRef{b.HostID, b.HostSlot}, epoch: b.Epoch,
		open: b.State != released, serving: b.serving(), moving: b.moving(), holdsGPU: b.holdsGPU(),
		unreplaced: t.awaitsReplacement(b), request: b.ReplaceRequest, moveRequest: b.MoveRequest,
	}
	k.awaits, k.promise = b.AwaitsGPUOf, b.GPUPromisedTo
	if b.Part != nil {
		k.part = *b.Part
	}
	k.takesHostSlot = b.holdsHostSlot() || k.unreplaced
	k.inHostSlot = k.open || k.unreplaced
	k.crosses = t.uplinksOf(b)
	return k
}

// uplinksOf returns the racks whose uplinks a binding uses: also those that the successor
// in a migration will use, unless the source is in the same rack and uses them meanwhile.
func (t *tx) uplinksOf(b *bindingRecord) (racks [2]string) {
	host, box := t.nodes.get(b.HostID), t.nodes.get(b.BoxID)
	if !b.occupied() || host == nil || box == nil || host.Rack == "" || box.Rack == "" || host.Rack == box.Rack {
		return racks
	}
	if source := t.bindings.get(b.Follows); source != nil && source.serving() {
		if n := t.nodes.get(source.BoxID); n != nil && n.Rack == box.Rack {
			return racks
		}
	}
	return [2]string{host.Rack, box.Rack}
}

// awaitsReplacement reports whether the host slot of a broken binding is
// reserved for its replacement.
func (t *tx) awaitsReplacement(b *bindingRecord) bool {
	if !b.needsReplacement() {
		return false
	}
	l := t.leases.get(b.LeaseID)
	return l != nil && l.holds()
}

// indexBinding updates the entry of a binding and adds the nodes whose capacity
// changes to stale.
func (t *tx) indexBinding(id string, stale map[string]bool) {
	old, had := t.indexedBindings[id]
	var k bindingEntry
	b := t.bindings.get(id)
	if b != nil {
		k = t.bindingEntry(b)
	}
	if had && b != nil && old == k {
		return
	}
	if had {
		t.dropBinding(id, old)
		stale[old.gpu.Box], stale[old.slot.host] = true, true
	}
	if b == nil {
		return
	}
	stale[k.gpu.Box], stale[k.slot.host] = true, true
	t.indexedBindings[id] = k
	at, _ := slices.BinarySearchFunc(t.bindingsByLease[k.lease], k.epoch, func(o string, e uint64) int {
		return cmp.Compare(t.indexedBindings[o].epoch, e)
	})
	// Insert into a copy: a caller that ranges over bindingsOf may change bindings.
	t.bindingsByLease[k.lease] = slices.Insert(slices.Clone(t.bindingsByLease[k.lease]), at, id)
	if k.open {
		addTo(t.bindingsByNode, k.gpu.Box, id)
		addTo(t.bindingsByNode, k.slot.host, id)
	}
	if k.holdsGPU {
		t.bindingsByGPU[k.gpu] = append(slices.Clone(t.bindingsByGPU[k.gpu]), id)
	}
	if k.inHostSlot {
		t.bindingsByHostSlot[k.slot] = append(slices.Clone(t.bindingsByHostSlot[k.slot]), id)
	}
	if k.unreplaced {
		t.unreplaced[k.lease]++
	}
	t.countCrossing(k.crosses, 1)
	if k.request != "" {
		t.replacedByRequest[k.request] = id
	}
	if k.moveRequest != "" {
		t.movedByRequest[k.moveRequest] = id
	}
}

func (t *tx) dropBinding(id string, k bindingEntry) {
	delete(t.indexedBindings, id)
	if t.replacedByRequest[k.request] == id {
		delete(t.replacedByRequest, k.request)
	}
	if t.movedByRequest[k.moveRequest] == id {
		delete(t.movedByRequest, k.moveRequest)
	}
	dropFrom(t.bindingsByLease, k.lease, id)
	if k.open {
		removeFrom(t.bindingsByNode, k.gpu.Box, id)
		removeFrom(t.bindingsByNode, k.slot.host, id)
	}
	if k.holdsGPU {
		dropFrom(t.bindingsByGPU, k.gpu, id)
	}
	if k.inHostSlot {
		dropFrom(t.bindingsByHostSlot, k.slot, id)
	}
	t.countCrossing(k.crosses, -1)
	if k.unreplaced {
		if t.unreplaced[k.lease]--; t.unreplaced[k.lease] == 0 {
			delete(t.unreplaced, k.lease)
		}
	}
}

// countCrossing adds n, 1 or -1, to the GPUs that use the uplinks of two racks.
func (t *tx) countCrossing(racks [2]string, n int) {
	if racks[0] == "" || t.cfg.RackUplink == 0 {
		return
	}
	for _, r := range racks {
		t.crossing[r] += n
		if t.crossing[r] >= t.cfg.RackUplink {
			t.fullUplinks[r] = true
		} else {
			delete(t.fullUplinks, r)
		}
		if t.crossing[r] == 0 {
			delete(t.crossing, r)
		}
	}
}

func (t *tx) leaseEntry(l *leaseRecord) leaseEntry {
	k := leaseEntry{
		request: requestKey{l.spec.Tenant, l.RequestID}, model: l.Model, holding: l.holds(), preemptible: l.holds() && l.spec.Preemptible,
		degraded: l.State == leaseDegraded,
	}
	if l.HostID != "" { // it has been granted
		k.gpus = l.size()
	}
	if l.ended() {
		k.ended = l.EndTime
		return k
	}
	k.tenant, k.gang, k.asks = l.spec.Tenant, l.gang(), l.spec
	k.promised, k.sleeps = l.Promise != nil, l.sleeps()
	if label := l.affinity(); label != "" && k.holding {
		k.affinity = affinityKey{l.spec.Tenant, label}
	}
	if l.State == leasePending && !k.sleeps {
		k.queueKey = queueKey{l.spec.Priority, l.CreateTime.UnixNano(), l.ID}
		if k.incomplete = l.lacksMembers(); !k.incomplete && l.spec.Gang != nil {
			k.queueKey.created = l.GangComplete.UnixNano()
		}
		k.spec = l.spec // specs are never changed in place
		switch old := t.indexedLeases[l.ID]; {
		case k.promised: // each has its own promise
			k.shape = "\x00\x00" + l.ID
		case old.spec == l.spec && !old.promised:
			k.shape = old.shape
		default:
			k.shape = shapeOf(l.spec)
		}
	}
	return k
}

// shapeOf returns the part of a spec that decides whether it fits; for a lease of a gang,
// the name of the gang.
func shapeOf(s *dxpuv1.LeaseSpec) string {
	if s.Gang != nil { // an encoded message does not begin with a zero
		return "\x00" + s.Tenant + "\x00" + s.Gang.Name
	}
	c := proto.CloneOf(s)
	c.Wait, c.WaitTimeout, c.Labels, c.Ttl = false, nil, nil, nil
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if err != nil { // invalid UTF-8, which no request can have
		return s.String()
	}
	return string(raw)
}

func (t *tx) indexLease(id string) {
	old, had := t.indexedLeases[id]
	var k leaseEntry
	l := t.leases.get(id)
	if l != nil {
		k = t.leaseEntry(l)
	}
	if had && l != nil && old == k {
		return
	}
	if had {
		t.dropLease(id, old)
		// Its quota is free again, or what was promised to it.
		t.capacityGrew = t.capacityGrew || old.holding && !k.holding || old.counts() > k.counts() || old.promised && !k.promised
		if t.reserved != nil && t.reserved.lease == id && k.shape == "" {
			t.reserved, t.capacityGrew = nil, true // others may have what it held
		}
	}
	if l == nil {
		return
	}
	t.indexedLeases[id] = k
	t.leaseIDs.add(id)
	t.countLease(id, &k, 1)
	if k.asks != nil {
		t.countRequest(k.asks, int(k.asks.Count))
	}
	if k.preemptible {
		t.preemptibleLeases[id] = true
		t.capacityGrew = t.capacityGrew || !old.preemptible && len(t.pendingByShape) > 0 // for those of higher priority
	}
	if k.promised {
		t.promises[id] = true
	}
	if k.request.id != "" {
		t.leaseByRequestID[k.request] = id
	}
	if k.tenant != "" {
		t.openLeaseIDs.add(id)
	}
	if k.gang != (gangKey{}) {
		t.gangs[k.gang] = insertSorted(slices.Clone(t.gangs[k.gang]), id, compareLeaseIDs)
	}
	if k.affinity != (affinityKey{}) {
		t.affine[k.affinity] = insertSorted(slices.Clone(t.affine[k.affinity]), id, compareLeaseIDs)
	}
	if k.shape != "" && !k.incomplete {
		t.pendingByShape[k.shape] = insertSorted(t.pendingByShape[k.shape], k.queueKey, queueKey.compare)
	}
	if k.shape != "" {
		t.waiting.add(k.tenant, k.queueKey, ask{sizeOf(k.spec), k.spec.Model})
	}
	if !k.ended.IsZero() {
		t.endedLeases = insertSorted(t.endedLeases, endedLease{k.ended, id}, endedLease.compare)
	}
}

func (t *tx) dropLease(id string, k leaseEntry) {
	delete(t.indexedLeases, id)
	t.leaseIDs.remove(id)
	delete(t.preemptibleLeases, id)
	delete(t.promises, id)
	t.countLease(id, &k, minusOne)
	if k.asks != nil {
		t.countRequest(k.asks, -int(k.asks.Count))
	}
	if t.leaseByRequestID[k.request] == id {
		delete(t.leaseByRequestID, k.request)
	}
	if k.tenant != "" {
		t.openLeaseIDs.remove(id)
	}
	if k.gang != (gangKey{}) {
		dropFrom(t.gangs, k.gang, id)
	}
	if k.affinity != (affinityKey{}) {
		dropFrom(t.affine, k.affinity, id)
	}
	if k.shape != "" {
		t.waiting.remove(k.tenant, k.queueKey)
		t.pendingByShape[k.shape] = removeSorted(t.pendingByShape[k.shape], k.queueKey, queueKey.compare)
		if len(t.pendingByShape[k.shape]) == 0 {
			delete(t.pendingByShape, k.shape)
		}
	}
	t.endedLeases = removeSorted(t.endedLeases, endedLease{k.ended, id}, endedLease.compare)
}

// bindingsOf returns the IDs of a lease's bindings, oldest first. The caller
// must not change the result.
func (t *tx) bindingsOf(lease string) []string {
	t.reindex()
	return t.bindingsByLease[lease]
}

// bindingsAt returns the IDs of the unreleased bindings of a host or box, in order.
func (t *tx) bindingsAt(node string) []string {
	t.reindex()
	return slices.Sorted(maps.Keys(t.bindingsByNode[node]))
}

// holderOf returns the binding that occupies a GPU, nil if the GPU is free.
func (t *tx) holderOf(gpu placement.Ref) *bindingRecord {
	t.reindex()
	return t.holder(gpu.Box, gpu.Slot)
}

// holder is holderOf for use while the index is being updated.
func (t *tx) holder(box string, slot uint32) *bindingRecord {
	if ids := t.bindingsByGPU[placement.Ref{Box: box, Slot: slot}]; len(ids) > 0 {
		return t.bindings.get(ids[0])
	}
	return nil
}

// bindingsIn returns the IDs of the bindings that are or will be in a host slot.
func (t *tx) bindingsIn(s hostSlotRef) []string {
	t.reindex()
	return t.bindingsByHostSlot[s]
}

// leaseByRequest returns the lease that an earlier call of a tenant created,
// nil for none.
func (t *tx) leaseByRequest(id, tenant string) (*leaseRecord, error) {
	if id == "" {
		return nil, nil
	}
	t.reindex()
	k := requestKey{tenant, id}
	l := t.leases.get(t.leaseByRequestID[k])
	if l == nil && !t.ended.complete && !t.ended.looked[k] {
		return nil, &endedIsNeeded{k}
	}
	return l, nil
}
