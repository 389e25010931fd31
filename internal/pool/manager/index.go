package manager

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// index finds records without looking at all of them. It follows from the
// records alone: reindex brings it up to date with what a transaction changed,
// before anything is looked up.
type index struct {
	bindingEntries map[string]bindingEntry
	ofLease        map[string][]string        // bindings of a lease, oldest first
	ofNode         map[string]map[string]bool // bindings of a host or box that are not released
	gpus           map[placement.Ref][]string // bindings that hold a GPU: one at most
	hostSlots      map[hostSlot][]string      // bindings that have to do with a host slot

	leaseEntries map[string]leaseEntry
	leaseIDs     sequence                   // all
	openIDs      sequence                   // those that are not over
	requests     map[request]string         // leases by the call that made them
	ofTenant     map[string]map[string]bool // leases that are not over
	queue        map[string]*waiting        // leases that wait, by shape
	hungry       map[string]int             // leases with broken GPUs in need of others: how many
	ended        []endedLease               // leases that are over, the oldest first
	uses         map[string]*use            // what each tenant has
	prey         map[string]bool            // leases that hold GPUs and may have to give them up

	nodeEntries map[string]nodeEntry
	hostIDs     sequence
	boxIDs      sequence
	boxes       map[string]placement.Box // what pool has
	hosts       map[string]placement.Host
	pool        *placement.Pool
	hostPool    *placement.Hosts
	grew        bool // capacity has come back, or rules have changed: those who wait may try again
}

func newIndex() index {
	return index{
		bindingEntries: map[string]bindingEntry{}, ofLease: map[string][]string{}, ofNode: map[string]map[string]bool{},
		gpus: map[placement.Ref][]string{}, hostSlots: map[hostSlot][]string{},
		leaseEntries: map[string]leaseEntry{}, requests: map[request]string{}, ofTenant: map[string]map[string]bool{},
		queue: map[string]*waiting{}, hungry: map[string]int{}, uses: map[string]*use{}, prey: map[string]bool{},
		nodeEntries: map[string]nodeEntry{},
		leaseIDs:    newSequence(compareNumbered), openIDs: newSequence(compareNumbered),
		hostIDs: newSequence(strings.Compare), boxIDs: newSequence(strings.Compare),
		boxes: map[string]placement.Box{}, hosts: map[string]placement.Host{},
		pool: placement.NewPool(), hostPool: placement.NewHosts(),
	}
}

type hostSlot struct {
	host string
	slot uint32
}

// bindingEntry is where the index has a binding.
type bindingEntry struct {
	lease string
	gpu   placement.Ref
	slot  hostSlot
	epoch uint64
	alive bool // not released
	good  bool // it serves its lease or is on the way to it
	holds bool // it holds its GPU
	waits bool // its host slot is kept for the GPU that takes its place
	taken bool // its host slot is not free
	slots bool // it has to do with its host slot
}

type request struct{ tenant, id string }

// leaseEntry is where the index has a lease.
type leaseEntry struct {
	request request
	tenant  string // while it is not over
	shape   string // while it waits
	spec    *dxpuv1.LeaseSpec
	place   place
	gpus    uint32
	model   string
	holds   bool
	prey    bool
	ended   time.Time // when it is over
}

// place is a lease's place in the queue: by priority, then by age.
type place struct {
	priority int32
	created  int64 // ns since 1970
	id       string
}

func (a place) compare(b place) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.created, b.created), compareNumbered(a.id, b.id))
}

// waiting is the leases of the queue that are alike in all that matters for
// whether they can be granted: when the first cannot, none of them can.
type waiting struct{ places []place }

type endedLease struct {
	at time.Time
	id string
}

func (a endedLease) compare(b endedLease) int {
	return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.id, b.id))
}

// frozen keeps the index as it is, however it was changed, while something is
// tried out on it.
func (t *tx) frozen(f func()) {
	t.reindex()
	t.freeze = true
	f()
	t.freeze = false
}

// reindex brings the index up to date with the records that the transaction has
// changed so far. A record may change again after it: so all of them are
// compared, each time.
func (t *tx) reindex() {
	if t.freeze {
		return
	}
	stale := map[string]bool{}
	for id := range t.leases.before {
		t.indexLease(id)
		for _, b := range t.ofLease[id] {
			t.indexBinding(b, stale)
		}
	}
	for id := range t.bindings.before {
		t.indexBinding(id, stale)
	}
	for id := range t.nodes.before {
		if !t.nodes.quiet[id] {
			stale[id] = true
		}
	}
	for id := range t.restless {
		stale[id] = true
	}
	for id := range stale {
		t.indexNode(id)
	}
	if len(t.tenants.hot) > 0 {
		t.grew = true // a quota may allow more
		clear(t.tenants.hot)
	}
}

func (t *tx) bindingEntry(b *bindingRecord) bindingEntry {
	k := bindingEntry{
		lease: b.LeaseID, gpu: b.ref(), slot: hostSlot{b.HostID, b.HostSlot}, epoch: b.Epoch,
		alive: b.State != released, good: b.good(), holds: b.holdsGPU(), waits: t.waits(b),
	}
	k.taken = b.holdsHostSlot() || k.waits
	k.slots = k.alive || k.waits
	return k
}

// waits reports whether the host slot of a binding that is no more is kept for
// the GPU that takes its place.
func (t *tx) waits(b *bindingRecord) bool {
	if !b.missed() {
		return false
	}
	l := t.leases.get(b.LeaseID)
	return l != nil && l.holds()
}

// indexBinding puts a binding where it belongs and notes the nodes whose
// capacity that changes.
func (t *tx) indexBinding(id string, stale map[string]bool) {
	old, had := t.bindingEntries[id]
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
	t.bindingEntries[id] = k
	at, _ := slices.BinarySearchFunc(t.ofLease[k.lease], k.epoch, func(o string, e uint64) int {
		return cmp.Compare(t.bindingEntries[o].epoch, e)
	})
	// A copy: who ranges over bindingsOf may change bindings.
	t.ofLease[k.lease] = slices.Insert(slices.Clone(t.ofLease[k.lease]), at, id)
	if k.alive {
		addTo(t.ofNode, k.gpu.Box, id)
		addTo(t.ofNode, k.slot.host, id)
	}
	if k.holds {
		t.gpus[k.gpu] = append(slices.Clone(t.gpus[k.gpu]), id)
	}
	if k.slots {
		t.hostSlots[k.slot] = append(slices.Clone(t.hostSlots[k.slot]), id)
	}
	if k.waits {
		t.hungry[k.lease]++
	}
}

func (t *tx) dropBinding(id string, k bindingEntry) {
	delete(t.bindingEntries, id)
	dropFrom(t.ofLease, k.lease, id)
	if k.alive {
		removeFrom(t.ofNode, k.gpu.Box, id)
		removeFrom(t.ofNode, k.slot.host, id)
	}
	if k.holds {
		dropFrom(t.gpus, k.gpu, id)
	}
	if k.slots {
		dropFrom(t.hostSlots, k.slot, id)
	}
	if k.waits {
		if t.hungry[k.lease]--; t.hungry[k.lease] == 0 {
			delete(t.hungry, k.lease)
		}
	}
}

func (t *tx) leaseEntry(l *leaseRecord) leaseEntry {
	k := leaseEntry{
		request: request{l.spec.Tenant, l.RequestID}, model: l.Model, holds: l.holds(), prey: l.holds() && l.spec.Preemptible,
	}
	if l.HostID != "" { // it has been given some
		k.gpus = l.spec.Count
	}
	if l.ended() {
		k.ended = l.EndTime
		return k
	}
	k.tenant = l.spec.Tenant
	if l.State == leasePending {
		k.place = place{l.spec.Priority, l.CreateTime.UnixNano(), l.ID}
		k.spec = l.spec // never changed in place
		if old := t.leaseEntries[l.ID]; old.spec == l.spec {
			k.shape = old.shape
		} else {
			k.shape = shapeOf(l.spec)
		}
	}
	return k
}

// shapeOf is all of a spec that decides on whether it can be granted.
func shapeOf(s *dxpuv1.LeaseSpec) string {
	c := proto.CloneOf(s)
	c.ExpiresAfter, c.Wait, c.WaitTimeout, c.Labels = nil, false, nil, nil
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if err != nil { // strings that are not UTF-8, which no request can have
		return s.String()
	}
	return string(raw)
}

func (t *tx) indexLease(id string) {
	old, had := t.leaseEntries[id]
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
		t.grew = t.grew || old.holds && !k.holds // its quota is free
	}
	if l == nil {
		return
	}
	t.leaseEntries[id] = k
	t.leaseIDs.add(id)
	t.count(&k, 1)
	if k.prey {
		t.prey[id] = true
		t.grew = t.grew || !old.prey && len(t.queue) > 0 // for those of higher priority
	}
	if k.request.id != "" {
		t.requests[k.request] = id
	}
	if k.tenant != "" {
		addTo(t.ofTenant, k.tenant, id)
		t.openIDs.add(id)
	}
	if k.shape != "" {
		w := t.queue[k.shape]
		if w == nil {
			w = &waiting{}
			t.queue[k.shape] = w
		}
		at, _ := slices.BinarySearchFunc(w.places, k.place, place.compare)
		w.places = slices.Insert(w.places, at, k.place)
	}
	if !k.ended.IsZero() {
		e := endedLease{k.ended, id}
		at, _ := slices.BinarySearchFunc(t.ended, e, endedLease.compare)
		t.ended = slices.Insert(t.ended, at, e)
	}
}

func (t *tx) dropLease(id string, k leaseEntry) {
	delete(t.leaseEntries, id)
	t.leaseIDs.remove(id)
	delete(t.prey, id)
	t.count(&k, minusOne)
	if t.requests[k.request] == id {
		delete(t.requests, k.request)
	}
	if k.tenant != "" {
		removeFrom(t.ofTenant, k.tenant, id)
		t.openIDs.remove(id)
	}
	if w := t.queue[k.shape]; k.shape != "" {
		if at, ok := slices.BinarySearchFunc(w.places, k.place, place.compare); ok {
			w.places = without(w.places, at)
		}
		if len(w.places) == 0 {
			delete(t.queue, k.shape)
		}
	}
	if at, ok := slices.BinarySearchFunc(t.ended, endedLease{k.ended, id}, endedLease.compare); ok {
		t.ended = without(t.ended, at)
	}
}

// without removes an element; the first one, which it is as a rule, at no cost.
func without[T any](s []T, at int) []T {
	if at > 0 {
		return slices.Delete(s, at, at+1)
	}
	var zero T
	s[0] = zero
	return s[1:]
}

func addTo[K comparable](m map[K]map[string]bool, key K, id string) {
	if m[key] == nil {
		m[key] = map[string]bool{}
	}
	m[key][id] = true
}

func removeFrom[K comparable](m map[K]map[string]bool, key K, id string) {
	delete(m[key], id)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

func dropFrom[K comparable](m map[K][]string, key K, id string) {
	if len(m[key]) == 1 {
		delete(m, key)
		return
	}
	m[key] = slices.DeleteFunc(slices.Clone(m[key]), func(o string) bool { return o == id })
}

// bindingsOf returns the IDs of a lease's bindings, oldest first. The result is
// not to be changed.
func (t *tx) bindingsOf(lease string) []string {
	t.reindex()
	return t.ofLease[lease]
}

// bindingsAt returns the IDs of the bindings of a host or box that are not
// released, in order.
func (t *tx) bindingsAt(node string) []string {
	t.reindex()
	ids := make([]string, 0, len(t.ofNode[node]))
	for id := range t.ofNode[node] {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// holderOf returns the binding that holds a GPU, nil when it is free.
func (t *tx) holderOf(gpu placement.Ref) *bindingRecord {
	t.reindex()
	return t.holder(gpu.Box, gpu.Slot)
}

// holder is holderOf while the index is being made.
func (t *tx) holder(box string, slot uint32) *bindingRecord {
	if ids := t.gpus[placement.Ref{Box: box, Slot: slot}]; len(ids) > 0 {
		return t.bindings.get(ids[0])
	}
	return nil
}

// compareNumbered orders IDs that end in a number, such as "l-7", by it: those of
// leases, which are made in that order.
func compareNumbered(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

// bindingsIn returns the IDs of the bindings that have to do with a host slot.
func (t *tx) bindingsIn(s hostSlot) []string {
	t.reindex()
	return t.hostSlots[s]
}

// leaseByRequest finds the lease that a tenant's earlier call made.
func (t *tx) leaseByRequest(id, tenant string) *leaseRecord {
	if id == "" {
		return nil
	}
	t.reindex()
	return t.leases.get(t.requests[request{tenant, id}])
}
