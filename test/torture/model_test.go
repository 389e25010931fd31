package torture

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// phase is the part of a lease's state that a caller can rely on: the lease exists,
// and it has ended.
type phase string

const (
	live  phase = "live"  // PENDING to DEGRADED
	ended phase = "ended" // RELEASING, RELEASED or FAILED: never live again
)

// seen is what a caller sees of a lease.
type seen struct {
	phase   phase
	count   uint32 // 0: it was not looked at
	version uint64 // 0: it was not looked at
}

func seenOf(l *dxpuv1.Lease) seen {
	return seen{phase: phaseOf(l), count: l.Spec.Count, version: l.ResourceVersion}
}

// opInput is a call.
type opInput struct {
	kind    string // create, migrate, resize, delete, get, list
	lease   string // of migrate, resize, delete and get
	count   uint32 // of create and resize
	version uint64 // of resize: the version that the caller has read
}

// opOutput is the answer to a call. It is certain, because callers repeat a call
// until it is. Creation is idempotent by its request ID, and a change of a version
// happens once.
type opOutput struct {
	full      bool            // create: there was no capacity
	lease     string          // create: the lease
	conflict  uint64          // resize: it was refused, because the lease has this version
	ambiguous bool            // an earlier attempt may have done it
	leases    map[string]seen // list: all leases; others: the lease, if the answer has it
}

// leaseState is what is known of a lease.
type leaseState struct {
	phase phase
	// count is the most GPUs that the lease may have: a manager takes a GPU that cannot
	// be attached from a lease that has grown, and nothing else changes the count.
	count   uint32
	version uint64 // the lease has at least this version
	exact   bool   // phase and count are those of the version
}

// leases is the state of the model: every lease created so far.
type leases map[string]leaseState

// model defines the leases that concurrent callers may see.
//
// A lease may end by itself when it cannot be attached under faults: the first
// caller that sees it ended ends it for all later ones. A manager may refuse a
// creation or a growth for lack of capacity at any time, because nodes come and go.
// A version never returns, names one state of a lease, and is accepted only as long as
// no caller has seen a later one.
var model = porcupine.Model{
	Init: func() any { return leases{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(leases), input.(opInput), output.(opOutput)
		switch in.kind {
		case "create":
			return s.create(in, out)
		case "resize":
			return s.resize(in, out)
		case "delete":
			return s.see(map[string]seen{in.lease: {phase: ended, version: out.leases[in.lease].version}}, false)
		case "migrate":
			return s.see(map[string]seen{in.lease: {phase: live}}, false) // only the GPUs of a live lease move
		case "get":
			return s.see(out.leases, false)
		default:
			return s.see(out.leases, true)
		}
	},
	Equal: func(a, b any) bool { return maps.Equal(a.(leases), b.(leases)) },
	DescribeOperation: func(input, output any) string {
		in, out := input.(opInput), output.(opOutput)
		return strings.TrimSpace(fmt.Sprintf("%s %s %d at %d -> %s %v %d %v", in.kind, in.lease, in.count, in.version, out.lease, out.leases, out.conflict, out.ambiguous))
	},
}

func (s leases) create(in opInput, out opOutput) (bool, any) {
	if out.full {
		return true, s
	}
	if _, known := s[out.lease]; known {
		return false, s // two creations returned the same lease
	}
	next := maps.Clone(s)
	next[out.lease] = leaseState{phase: live, count: in.count}
	return true, next
}

// resize checks a change of the count that depends on a version.
func (s leases) resize(in opInput, out opOutput) (bool, any) {
	had, known := s[in.lease]
	now := had
	switch {
	case !known:
		return false, s
	case out.conflict != 0:
		if out.conflict == in.version || out.conflict < had.version {
			return false, s // it was not stale, or the refusal itself is
		}
		if out.conflict > had.version {
			now.version, now.exact = out.conflict, false
		}
		if out.ambiguous && in.count > now.count {
			now.count, now.exact = in.count, false
		}
	case had.count != in.count && (had.phase == ended || had.version > in.version):
		return false, s // it has ended, or another call came between; a call that changes nothing may come later
	default:
		now.count, now.exact = in.count, false
		if had.version <= in.version {
			now.version = in.version + 1
		}
	}
	next := maps.Clone(s)
	next[in.lease] = now
	if at, ok := out.leases[in.lease]; ok && !out.ambiguous {
		return next.see(map[string]seen{in.lease: at}, false)
	}
	return true, next
}

// see checks what a caller saw; all: it is the complete list.
func (s leases) see(saw map[string]seen, all bool) (bool, any) {
	if all && len(saw) != len(s) {
		return false, s
	}
	changed := leases{}
	for id, v := range saw {
		had, known := s[id]
		now := had
		now.phase = v.phase
		if v.version > 0 {
			now.version, now.exact = v.version, v.count > 0
		}
		if v.count > 0 {
			now.count = v.count
		}
		switch {
		case !known, had.phase == ended && v.phase == live:
			return false, s // never created, or live after its end
		case v.count > had.count, v.version > 0 && v.version < had.version:
			return false, s // more GPUs than a call has asked for, or an earlier state
		case had.exact && v.version == had.version && v.count > 0 && now != had:
			return false, s // two states of one version
		case now != had:
			changed[id] = now
		}
	}
	if len(changed) == 0 {
		return true, s
	}
	next := maps.Clone(s)
	maps.Copy(next, changed)
	return true, next
}

// The model rejects the faults that the torture looks for.
func TestModelFindsFaults(t *testing.T) {
	at := func(call, ret int64, in opInput, out opOutput) porcupine.Operation {
		return porcupine.Operation{Input: in, Output: out, Call: call, Return: ret}
	}
	create := opInput{kind: "create"}
	list := opInput{kind: "list"}
	l1 := opOutput{lease: "l-1"}
	see := func(p ...string) opOutput { // "l-1 live", or with its count and version "l-1 live 2 7"
		out := opOutput{leases: map[string]seen{}}
		for _, s := range p {
			var id string
			var v seen
			_, _ = fmt.Sscan(s, &id, &v.phase, &v.count, &v.version) // the count and the version are optional
			out.leases[id] = v
		}
		return out
	}
	resize := func(count uint32, version uint64) opInput {
		return opInput{kind: "resize", lease: "l-1", count: count, version: version}
	}
	one := at(0, 1, opInput{kind: "create", count: 1}, l1)
	tests := []struct {
		name string
		ops  []porcupine.Operation
		want bool
	}{
		{"in order", []porcupine.Operation{at(0, 1, create, l1), at(2, 3, list, see("l-1 live"))}, true},
		{"seen during its creation", []porcupine.Operation{at(0, 3, create, l1), at(1, 2, list, see("l-1 live"))}, true},
		{"ended by itself", []porcupine.Operation{at(0, 1, create, l1), at(2, 3, list, see("l-1 ended"))}, true},
		{"acknowledged and lost", []porcupine.Operation{at(0, 1, create, l1), at(2, 3, list, see())}, false},
		{"never created", []porcupine.Operation{at(2, 3, list, see("l-1 live"))}, false},
		{"one lease for two creations", []porcupine.Operation{at(0, 1, create, l1), at(2, 3, create, l1)}, false},
		{"stale read", []porcupine.Operation{
			at(0, 1, create, l1), at(2, 3, opInput{kind: "delete", lease: "l-1"}, opOutput{}), at(4, 5, list, see("l-1 live")),
		}, false},
		{"migrated", []porcupine.Operation{at(0, 1, create, l1), at(2, 3, opInput{kind: "migrate", lease: "l-1"}, opOutput{})}, true},
		{"migrated after its end", []porcupine.Operation{
			at(0, 1, create, l1), at(2, 3, opInput{kind: "delete", lease: "l-1"}, opOutput{}), at(4, 5, opInput{kind: "migrate", lease: "l-1"}, opOutput{}),
		}, false},
		{"live after its end", []porcupine.Operation{
			at(0, 1, create, l1), at(2, 3, list, see("l-1 ended")), at(4, 5, list, see("l-1 live")),
		}, false},
		{"resized", []porcupine.Operation{one, at(2, 3, list, see("l-1 live 1 7")), at(4, 5, resize(2, 7), see("l-1 live 2 8")), at(6, 7, list, see("l-1 live 2 9"))}, true},
		{"more GPUs than were asked for", []porcupine.Operation{one, at(2, 3, list, see("l-1 live 2 7"))}, false},
		{"grew twice", []porcupine.Operation{one, at(2, 3, list, see("l-1 live 1 7")), at(4, 5, resize(2, 7), see("l-1 live 2 8")), at(6, 7, list, see("l-1 live 3 8"))}, false},
		{"an added GPU could not be attached", []porcupine.Operation{
			one, at(2, 3, list, see("l-1 live 1 7")), at(4, 5, resize(2, 7), see("l-1 live 2 8")), at(6, 7, list, see("l-1 live 1 9")),
		}, true},
		{"a stale version is accepted", []porcupine.Operation{
			one, at(2, 3, list, see("l-1 live 1 7")), at(4, 5, list, see("l-1 live 1 8")), at(6, 7, resize(2, 7), see("l-1 live 2 9")),
		}, false},
		{"a fresh version is refused", []porcupine.Operation{one, at(2, 3, list, see("l-1 live 1 7")), at(4, 5, resize(2, 7), opOutput{conflict: 7})}, false},
		{"a stale version is refused", []porcupine.Operation{one, at(2, 3, list, see("l-1 live 1 8")), at(4, 5, resize(2, 7), opOutput{conflict: 8})}, true},
		{"a version returns", []porcupine.Operation{one, at(2, 3, list, see("l-1 live 1 8")), at(4, 5, list, see("l-1 live 1 7"))}, false},
		{"two states of one version", []porcupine.Operation{one, at(2, 3, list, see("l-1 live 1 8")), at(4, 5, list, see("l-1 ended 1 8"))}, false},
		{"the first attempt has resized it", []porcupine.Operation{
			one, at(2, 3, list, see("l-1 live 1 7")), at(4, 9, resize(2, 7), opOutput{conflict: 8, ambiguous: true}), at(6, 7, list, see("l-1 live 2 8")),
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := porcupine.CheckOperations(model, tt.ops); got != tt.want {
				t.Errorf("linearizable: %v, want %v", got, tt.want)
			}
		})
	}
}

// describe formats a history in the order of the calls.
func describe(m porcupine.Model, ops []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	for _, o := range ops {
		fmt.Fprintf(&b, "client %d [%8.3f, %8.3f] %s\n", o.ClientId, float64(o.Call)/1e9, float64(o.Return)/1e9, m.DescribeOperation(o.Input, o.Output))
	}
	return b.String()
}
