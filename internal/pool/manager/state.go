package manager

import (
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// This file is the schema of the pool in memory: the tables, whose records are
// stored; the indexes, which follow from the records; and the work that is left
// to do. The records are in state_records.go, state_table.go has the table, state_index.go
// keeps the indexes up to date, state_tx.go changes all of it.

// Keys of the store: each table has a prefix, after which comes the record's ID.
const (
	metaKey       = "meta"
	nodePrefix    = "node/"
	bindingPrefix = "binding/"
	leasePrefix   = "lease/"
	tenantPrefix  = "tenant/"
	tokenPrefix   = "token/"
	auditPrefix   = "audit/"
	secretPrefix  = "secret/"
	eventPrefix   = "event/"
	historyPrefix = "history/"
	samplePrefix  = "sample/"
	planPrefix    = "plan/"
	endedPrefix   = "ended/" // leases that have ended, with their bindings: store_ended.go
)

// state is the pool in memory. Manager.mu guards it.
type state struct {
	meta     *meta                // the pool itself: its ID and its counters
	nodes    table[nodeRecord]    // hosts and boxes by name, with their slots and devices
	leases   table[leaseRecord]   // by ID, "l-7"
	bindings table[bindingRecord] // by ID, "b-7-k3f9zq": a host slot and a box slot of a lease
	tenants  table[tenantRecord]  // by name, with their quotas
	tokens   table[tokenRecord]   // credentials of persons and programs, by ID
	audits   table[auditRecord]   // a ring of keepAudit entries
	secrets  table[secretRecord]  // the pool's authority; the credentials of deleted nodes; a check of the join token
	// eventRing holds the newest events, in keepEventRecords records.
	eventRing table[eventRecord]
	histories table[historyRecord] // of GPUs and nodes, by their IDs
	samples   table[sampleRecord]  // the occupancy of the pool, a ring of a day's minutes
	plans     table[planRecord]    // maintenance that is not over, by ID, "m-3"

	index
	work
	ended endedLeaseStore
	began time.Time // when this manager began to decide on this state
	alike bool      // all managers run one version, and so can read what this one remembers
}

// anyTable is a table with records of any kind.
type anyTable interface {
	keyPrefix() string
	decode(raw []byte) (any, error)
	loadAny(id string, r any)
	changed() int
	check() error
	collect(into map[string]any)
	all(into map[string]any)
	restore()
	done()
}

// tables returns all tables of the state.
func (s *state) tables() [11]anyTable {
	return [...]anyTable{&s.nodes, &s.leases, &s.bindings, &s.tenants, &s.tokens, &s.audits, &s.secrets, &s.eventRing, &s.histories, &s.samples, &s.plans}
}

// index finds records without a scan of a table. It follows from the records, and
// for nodes from whether they report. A transaction calls reindex before it looks
// something up.
type index struct {
	// Bindings.
	indexedBindings    map[string]bindingEntry    // binding -> what the index has of it, to remove that again
	bindingsByLease    map[string][]string        // lease -> its bindings, oldest first
	bindingsByNode     map[string]map[string]bool // host or box -> its bindings that are not released
	bindingsByGPU      map[placement.Ref][]string // GPU -> the binding that holds it; two only within a transaction
	bindingsByHostSlot map[hostSlotRef][]string   // host slot -> bindings that are or will be in it

	replacedByRequest map[string]string // request_id of ReplaceGPU -> the binding that was replaced
	movedByRequest    map[string]string // request_id of MigrateLease -> the successor

	// Leases.
	indexedLeases     map[string]leaseEntry    // lease -> what the index has of it
	leaseIDs          sequence                 // all leases in the order of creation, for lists
	openLeaseIDs      sequence                 // those that have not ended
	leaseByRequestID  map[requestKey]string    // tenant and request_id -> lease, so that a call can be repeated
	pendingByShape    map[string][]queueKey    // shape of the request -> pending leases of that shape, in queue order; if the first does not fit, none does
	waiting           waitingQueue             // all pending leases, for their positions
	gangs             map[gangKey][]string     // the leases of each gang that have not ended, in the order of creation
	affine            map[affinityKey][]string //  the leases with GPUs by tenant and affinity, in the order of creation
	unreplaced        map[string]int           // lease -> how many of its bindings broke and have no replacement
	promises          map[string]bool          // leases to which GPUs are promised
	preemptibleLeases map[string]bool          // leases that have GPUs and may lose them to a lease of higher priority
	endedLeases       []endedLease             // ended leases, the oldest first: which to forget
	usageByTenant     map[string]*tenantUsage
	// requests counts the leases that have not ended by what they ask of a GPU; Count is 0.
	// Placement does not know of requestsChanged of requestsCounted in all.
	requests                         map[placement.Typical]int
	requestsCounted, requestsChanged int

	// Nodes.
	indexedNodes     map[string]nodeEntry        // host or box -> sums of its GPUs, and what placement has of it
	nodeByCredential map[string]string           // hash of the credential -> node
	slotsByDevice    map[deviceKey][]deviceClaim // the slots that report a device; several: see gpu_duplicates.go
	hostIDs, boxIDs  sequence                    // in order, for lists
	gpuPool          *placement.Pool             // the boxes and GPUs as placement sees them
	hostPool         *placement.Hosts            // the hosts and slots as placement sees them
	crossing         map[string]int              // rack -> GPUs that use its uplink
	fullUplinks      placement.Uplinks           // racks that reach Config.RackUplink

	// capacityGrew is set when capacity came back or a limit changed, so that leases
	// without GPUs may get some now.
	capacityGrew bool
}

// work lists what remains to be examined. It outlives transactions: the next one
// continues where the last one stopped.
type work struct {
	dirty               map[subject]bool // to be examined before the transaction ends
	staleNodes          map[string]bool  // nodes that reindex is to look at
	connectivityChanged map[string]bool  // nodes that have begun or ceased to report
	alarms              alarms           // subjects to be examined at a time
	pass                pass
	reserved            *reservation // of the pending lease that comes first; nil: none
	holders             leaseRenewals
}

// pass is one offer of capacity to all leases that need GPUs. It may take several
// transactions. Capacity that comes back during a pass starts another one after it.
type pass struct {
	active       bool
	replacements []string        // leases with broken bindings that were not tried yet
	tried        map[string]bool // shapes that do not fit
}

func newState(began time.Time) *state {
	return &state{
		meta:      &meta{},
		nodes:     newTable(nodePrefix, (*nodeRecord).unshare),
		leases:    newTable(leasePrefix, (*leaseRecord).unshare),
		bindings:  newTable(bindingPrefix, (*bindingRecord).unshare),
		tenants:   newTable(tenantPrefix, (*tenantRecord).unshare),
		tokens:    newTable[tokenRecord](tokenPrefix, nil),
		audits:    newTable[auditRecord](auditPrefix, nil),
		secrets:   newTable[secretRecord](secretPrefix, nil),
		eventRing: newTable[eventRecord](eventPrefix, nil),
		histories: newTable(historyPrefix, (*historyRecord).unshare),
		samples:   newTable[sampleRecord](samplePrefix, nil),
		plans:     newTable[planRecord](planPrefix, nil),
		index:     newIndex(),
		work:      work{dirty: map[subject]bool{}, connectivityChanged: map[string]bool{}, staleNodes: map[string]bool{}, alarms: alarms{at: map[subject]time.Duration{}}, holders: leaseRenewals{at: map[string]time.Time{}, floor: began}},
		ended:     newEndedLeaseStore(),
		began:     began,
	}
}

func newIndex() index {
	return index{
		indexedBindings: map[string]bindingEntry{}, bindingsByLease: map[string][]string{}, bindingsByNode: map[string]map[string]bool{},
		bindingsByGPU: map[placement.Ref][]string{}, bindingsByHostSlot: map[hostSlotRef][]string{},
		replacedByRequest: map[string]string{}, movedByRequest: map[string]string{},
		indexedLeases: map[string]leaseEntry{}, leaseIDs: newSequence(compareLeaseIDs), openLeaseIDs: newSequence(compareLeaseIDs),
		leaseByRequestID: map[requestKey]string{}, pendingByShape: map[string][]queueKey{}, waiting: waitingQueue{}, gangs: map[gangKey][]string{}, affine: map[affinityKey][]string{}, unreplaced: map[string]int{},
		promises: map[string]bool{}, preemptibleLeases: map[string]bool{}, usageByTenant: map[string]*tenantUsage{},
		requests:     map[placement.Typical]int{},
		indexedNodes: map[string]nodeEntry{}, nodeByCredential: map[string]string{},
		slotsByDevice: map[deviceKey][]deviceClaim{},
		hostIDs:       newSequence(strings.Compare), boxIDs: newSequence(strings.Compare),
		gpuPool: placement.NewPool(), hostPool: placement.NewHosts(),
		crossing: map[string]int{}, fullUplinks: placement.Uplinks{},
	}
}
