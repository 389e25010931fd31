package manager

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
)

// The record of a node has three parts: the contents of its last report, the cordons and taints of
// operators, and the errors of its GPUs. Each has room of its own in the record. A report that says too much is
// refused, whatever the node has reported before; a call of an operator that sets too much is
// refused; and of the errors the record keeps what fits. So no report is refused because of an
// earlier one.
const (
	maxNode     = maxRecord * 24 / 25 // the rules for drains and duplicates may add to the record
	maxReported = 450_000             // bytes, encoded
	maxSet      = 100_000
	// maxNodeErrors bounds the error classes that are counted for all GPUs of a node. Beyond it an
	// error that requires a reset takes the place of one that does not.
	maxNodeErrors = 1024
	// maxIdentity bounds the texts that tell a device and a run of its proxy apart in a fault
	// record, so that the state of the repair of 1,024 GPUs fits: longer ones become digests.
	maxIdentity = 64
)

// identity returns a text of bounded size in its place.
func identity(s string) string {
	plain := !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' || strings.ContainsRune(`<>&"\`, r) })
	if len(s) <= maxIdentity && plain {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:maxIdentity/2])
}

// checkNodes checks the parts of the node records that the transaction has changed. A part that is
// too large, as of an earlier version, may stay as it is.
func (t *tx) checkNodes() error {
	for id, was := range t.nodes.before {
		n := t.nodes.get(id)
		if n == nil || t.nodes.unindexed[id] || n.sizeBound() <= maxSet {
			continue // no need to encode it
		}
		if was == nil {
			was = &nodeRecord{}
		}
		size, err := n.sizes()
		if err == nil && size.reported > maxReported {
			size, err = t.dropHealthDetails(id).sizes()
		}
		if err != nil {
			return err
		}
		if size.reported > maxReported || size.set > maxSet {
			before, err := was.sizes()
			switch {
			case err != nil:
				return err
			case size.reported > max(maxReported, before.reported):
				return invalid("node %s: its report would take %d bytes, at most %d: report fewer slots or shorter texts", id, size.reported, maxReported)
			case size.set > max(maxSet, before.set):
				return invalid("node %s: its cordons and taints would take %d bytes, at most %d: use shorter reasons, or cordon and taint the node as a whole", id, size.set, maxSet)
			}
		}
		if err := t.fitFaults(id, size); err != nil {
			return err
		}
	}
	return nil
}

// dropHealthDetails shortens the record: a node's health counts, its explanation is for people.
func (t *tx) dropHealthDetails(id string) *nodeRecord {
	n := t.nodes.edit(id)
	for i := range n.Slots {
		n.Slots[i].HealthDetail = ""
	}
	return n
}

// fitFaults drops parts of a node's fault records until the record fits, the least important first.
// The state of the repair of each GPU always fits.
func (t *tx) fitFaults(id string, size nodeSizes) (err error) {
	for _, shorten := range []func(*faultRecord){(*faultRecord).dropDetails, (*faultRecord).joinRecent, (*faultRecord).dropMinor, (*faultRecord).dropErrors} {
		if size.reported+size.set+size.faults <= maxNode {
			return nil
		}
		n := t.nodes.get(id)
		for i := range n.Slots {
			if n.Slots[i].Fault != nil {
				t.editFault(id, n.Slots[i].Slot, shorten)
			}
		}
		if size, err = t.nodes.get(id).sizes(); err != nil {
			return err
		}
	}
	return nil
}

func (c *faultRecord) dropDetails() {
	c.Errors = slices.Clone(c.Errors)
	for i := range c.Errors {
		c.Errors[i].Detail = ""
	}
}

func (c *faultRecord) joinRecent() { c.Recent = gpuerr.Join(c.Recent) }

func (c *faultRecord) dropMinor() { c.drop(isMinor) }

func (c *faultRecord) dropErrors() { c.drop(func(uint32) bool { return true }) }

func isMinor(code uint32) bool { return gpuerr.Lookup(code).Action < gpuerr.Reset }

// drop forgets the errors with some codes. Failures of the GPU stay: three in an hour take it out of service.
func (c *faultRecord) drop(code func(uint32) bool) {
	c.Errors = slices.DeleteFunc(slices.Clone(c.Errors), func(e errorCount) bool { return code(e.Code) })
	c.Recent = slices.DeleteFunc(slices.Clone(c.Recent), func(o gpuerr.Occurrence) bool { return code(o.Code) && o.Code != gpuerr.DeviceFailed })
}

// admitError reports whether an error is counted. c is the fault record of its slot to be, and others
// the number of error classes of the node's other GPUs, one of which may make room.
func (t *tx) admitError(id string, slot uint32, c *faultRecord, e *dxpuv1.DeviceError, others *int) bool {
	if e == nil || e.Count == 0 || e.Code == gpuerr.DeviceFailed || c.counts(e.Code) || *others+len(c.Errors) < maxNodeErrors {
		return true
	}
	own := len(c.Errors)
	if isMinor(e.Code) || !t.makeErrorRoom(id, slot, c) {
		t.uncounted(id, slot, e.Code)
		return false
	}
	if len(c.Errors) == own {
		*others--
	}
	return true
}

// makeErrorRoom forgets an error that requires no reset, first of c, which is the fault record of
// a slot to be, and reports whether there was any.
func (t *tx) makeErrorRoom(id string, slot uint32, c *faultRecord) bool {
	if c.dropOneMinor() {
		return true
	}
	n := t.nodes.get(id)
	for i := range n.Slots {
		s := &n.Slots[i]
		if s.Slot != slot && s.Fault != nil && slices.ContainsFunc(s.Fault.Errors, func(e errorCount) bool { return isMinor(e.Code) }) {
			t.editFault(id, s.Slot, func(c *faultRecord) { c.dropOneMinor() })
			return true
		}
	}
	return false
}

func (c *faultRecord) dropOneMinor() bool {
	i := slices.IndexFunc(c.Errors, func(e errorCount) bool { return isMinor(e.Code) })
	if i < 0 {
		return false
	}
	gone := c.Errors[i].Code
	c.drop(func(code uint32) bool { return code == gone })
	return true
}

// nodeSizes are the encoded sizes of the parts of a node's record, in bytes.
type nodeSizes struct{ reported, set, faults int }

// sizes returns the sizes of the parts. It fails if no record could hold one of them.
func (n *nodeRecord) sizes() (out nodeSizes, err error) {
	faults := n.faults()
	for i, c := range faults {
		faults[i] = c.inRepair()
	}
	for _, part := range []struct {
		value any
		size  *int
	}{{n.reported(), &out.reported}, {n.set(), &out.set}, {faults, &out.faults}} {
		raw, err := json.Marshal(part.value)
		if err != nil {
			return out, fmt.Errorf("the record of node %s cannot be encoded: %w", n.ID, err)
		}
		*part.size = len(raw)
	}
	out.faults += len(`"care":`) * len(faults)
	return out, nil
}

// reported returns what the node's report has put into the record.
func (n *nodeRecord) reported() nodeRecord {
	c := *n
	c.Cordon, c.Taints, c.Slots = nil, nil, slices.Clone(n.Slots)
	// The manager sets these itself; they must not make a report larger that was taken before.
	c.CredentialHash, c.Certificates, c.Stability, c.DesiredRevision, c.ResourceVersion = nil, nil, nil, 0, 0
	for i := range c.Slots {
		s := &c.Slots[i]
		s.Cordon, s.Taints, s.Fault = nil, nil, nil
	}
	return c
}

// setPart is what operators have set of a node or a slot.
type setPart struct {
	Cordon *cordon `json:"cordon,omitempty"`
	Taints []taint `json:"taints,omitempty"`
}

// set returns what operators have set.
func (n *nodeRecord) set() []setPart {
	parts := []setPart{{n.Cordon, n.Taints}}
	for i := range n.Slots {
		if s := &n.Slots[i]; s.Cordon != nil || len(s.Taints) > 0 {
			parts = append(parts, setPart{s.Cordon, s.Taints})
		}
	}
	return parts
}

// faults returns the fault records.
func (n *nodeRecord) faults() (all []*faultRecord) {
	for i := range n.Slots {
		if c := n.Slots[i].Fault; c != nil {
			all = append(all, c)
		}
	}
	return all
}

// inRepair returns the fault record as it may become in the repair of the GPU, about which the
// rules decide after the size of the record has been checked.
func (c *faultRecord) inRepair() *faultRecord {
	out := *c
	out.Reset, out.Done, out.ResetDue, out.Quarantines = math.MaxUint64, math.MaxUint64, true, math.MaxInt
	out.ResetAsked, out.QuarantinedUntil, out.Returned = longestTime, longestTime, longestTime
	if len(out.Why) < len(whyResetFailed) {
		out.Why = whyResetFailed
	}
	return &out
}

// longestTime has the longest text in a record.
var longestTime = time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.FixedZone("", 13*3600))

// sizeBound returns an upper bound of the size of the encoded record, in bytes.
// JSON encodes a byte of text with at most six.
func (n *nodeRecord) sizeBound() int {
	const perText, perError, perHit, perSlot = 6, 200, 100, 1000
	text := len(n.Rack) + len(n.Version)
	for k, v := range n.Labels {
		text += len(k) + len(v) + 1
	}
	for _, a := range n.Addresses {
		text += len(a.Address) + len(a.Network) + 16
	}
	size := maxTaintSize * len(n.Taints)
	for i := range n.Slots {
		s := &n.Slots[i]
		text += len(s.Domain) + len(s.HealthDetail)
		if d := s.Device; d != nil {
			text += len(d.Model) + len(d.Serial) + len(d.NVLinkDomain) + len(d.PCIeSwitch)
		}
		if s.Cordon != nil {
			text += len(s.Cordon.Reason)
		}
		size += maxTaintSize * len(s.Taints)
		if c := s.Fault; c != nil {
			text += len(c.Serial) + len(c.Instance) + len(c.Why)
			size += perHit * len(c.Recent)
			for _, e := range c.Errors {
				text += len(e.Detail)
				size += perError
			}
		}
	}
	return perText*text + size + perSlot*(len(n.Slots)+1)
}

// uncounted says once that errors of a node's GPUs are not counted.
func (t *tx) uncounted(id string, slot, code uint32) {
	if t.nodes.get(id).ErrorsFull {
		return
	}
	n := t.nodes.edit(id)
	n.ErrorsFull = true
	e := gpuEvent(n, slot, dxpuv1.EventType_EVENT_TYPE_GPU_ERROR)
	e.ErrorCode, e.ErrorAction = code, dxpuv1.ErrorAction(gpuerr.Lookup(code).Action)
	t.event(e, "GPU %s has had %s, which is not counted: box %s has reported %d kinds of errors of its GPUs, which is the limit",
		e.GpuId, gpuerr.Lookup(code), id, maxNodeErrors)
}

// errorClasses returns the number of error classes that are counted for a node's GPUs.
func (n *nodeRecord) errorClasses() (classes int) {
	for i := range n.Slots {
		if c := n.Slots[i].Fault; c != nil {
			classes += len(c.Errors)
		}
	}
	return classes
}

func (c *faultRecord) classes() int {
	if c == nil {
		return 0
	}
	return len(c.Errors)
}

// counts reports whether errors with a code are counted already.
func (c *faultRecord) counts(code uint32) bool {
	_, ok := slices.BinarySearchFunc(c.Errors, code, func(x errorCount, code uint32) int { return cmp.Compare(x.Code, code) })
	return ok
}
