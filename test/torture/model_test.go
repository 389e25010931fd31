package torture

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

// phase is the part of a lease's state that a caller can rely on: the lease exists,
// and it has ended.
type phase string

const (
	live  phase = "live"  // PENDING to DEGRADED
	ended phase = "ended" // RELEASING, RELEASED or FAILED: never live again
)

// opInput is a call.
type opInput struct {
	kind  string // create, migrate, delete, get, list
	lease string // of migrate, delete and get
}

// opOutput is the answer to a call. It is certain, because callers repeat a call
// until it is. Creation is idempotent by its request ID.
type opOutput struct {
	full   bool             // create: there was no capacity
	lease  string           // create: the lease
	phases map[string]phase // get: the lease; list: all leases
}

// leases is the state of the model: every lease created so far.
type leases map[string]phase

// model defines the leases that concurrent callers may see.
//
// A lease may end by itself when it cannot be attached under faults: the first
// caller that sees it ended ends it for all later ones. A manager may refuse a
// creation for lack of capacity at any time, because nodes come and go.
var model = porcupine.Model{
	Init: func() any { return leases{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(leases), input.(opInput), output.(opOutput)
		switch in.kind {
		case "create":
			return s.create(out)
		case "delete":
			return s.see(map[string]phase{in.lease: ended}, false)
		case "migrate":
			return s.see(map[string]phase{in.lease: live}, false) // only the GPUs of a live lease move
		case "get":
			return s.see(out.phases, false)
		default:
			return s.see(out.phases, true)
		}
	},
	Equal: func(a, b any) bool { return maps.Equal(a.(leases), b.(leases)) },
	DescribeOperation: func(input, output any) string {
		in, out := input.(opInput), output.(opOutput)
		return strings.TrimSpace(fmt.Sprintf("%s %s -> %s%v", in.kind, in.lease, out.lease, out.phases))
	},
}

func (s leases) create(out opOutput) (bool, any) {
	if out.full {
		return true, s
	}
	if _, known := s[out.lease]; known {
		return false, s // two creations returned the same lease
	}
	next := maps.Clone(s)
	next[out.lease] = live
	return true, next
}

// see checks the phases that a caller saw; all: they are the complete list.
func (s leases) see(seen map[string]phase, all bool) (bool, any) {
	if all && len(seen) != len(s) {
		return false, s
	}
	var ends []string
	for id, p := range seen {
		had, known := s[id]
		switch {
		case !known, had == ended && p == live:
			return false, s // never created, or live after its end
		case had == live && p == ended:
			ends = append(ends, id)
		}
	}
	if len(ends) == 0 {
		return true, s
	}
	next := maps.Clone(s)
	for _, id := range ends {
		next[id] = ended
	}
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
	see := func(p ...string) opOutput {
		out := opOutput{phases: map[string]phase{}}
		for _, s := range p {
			id, ph, _ := strings.Cut(s, " ")
			out.phases[id] = phase(ph)
		}
		return out
	}
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
func describe(ops []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	for _, o := range ops {
		fmt.Fprintf(&b, "client %d [%8.3f, %8.3f] %s\n", o.ClientId, float64(o.Call)/1e9, float64(o.Return)/1e9, model.DescribeOperation(o.Input, o.Output))
	}
	return b.String()
}
