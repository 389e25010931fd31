package torture

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A tenant and the cordon of a node are registers: a caller reads a value and its version,
// and changes the value if it still has the version.

// accessInput is a call about a register.
type accessInput struct {
	kind    string // read, put, delete, token
	key     string // the ID
	version uint64 // that the caller has read; 0: it makes the register
	value   string // of put
	// loose: the pool changes the version by itself, but not the value.
	loose bool
}

// accessOutput is the answer.
type accessOutput struct {
	version   uint64 // read, put: the version; 0: there is none, or the answer does not tell
	value     string // read
	conflict  bool   // put, delete: refused, because the register has the version, 0: it does not exist
	missing   bool   // delete, token: there is no such register
	ambiguous bool   // an earlier attempt may have done it
}

// register is the state of the model.
type register struct {
	version uint64 // 0: it does not exist; loose: at least this
	value   string
}

// registers is the model of all registers, each of which is checked alone.
var registers = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		at := map[string]int{}
		var out [][]porcupine.Operation
		for _, o := range history {
			key := o.Input.(accessInput).key
			i, ok := at[key]
			if !ok {
				i = len(out)
				at[key], out = i, append(out, nil)
			}
			out[i] = append(out[i], o)
		}
		return out
	},
	Init: func() any { return register{} },
	Step: func(state, input, output any) (bool, any) {
		return state.(register).step(input.(accessInput), output.(accessOutput))
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

func (s register) step(in accessInput, out accessOutput) (bool, any) {
	if in.loose {
		return s.looseStep(in, out)
	}
	switch {
	case out.conflict:
		return out.version == s.version && out.version != in.version, s
	case in.kind == "read":
		return out.version == s.version && out.value == s.value, s
	case in.kind == "token":
		return out.missing == (s.version == 0), s
	case in.kind == "delete" && out.missing:
		return s.version == 0 || out.ambiguous && s.version == in.version, register{}
	case in.kind == "delete":
		return s.version == in.version, register{}
	default:
		return s.version == in.version && out.version > in.version, register{version: out.version, value: in.value}
	}
}

func (s register) looseStep(in accessInput, out accessOutput) (bool, any) {
	switch {
	case in.kind == "read":
		return out.version >= s.version && out.value == s.value, register{version: out.version, value: s.value}
	case out.conflict:
		return out.version >= s.version && out.version != in.version, register{version: out.version, value: s.value}
	default:
		return s.version <= in.version, register{version: in.version + 1, value: in.value}
	}
}

func (h *history) recordAccess(client int, call time.Time, in accessInput, out accessOutput) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.accessOps = append(h.accessOps, porcupine.Operation{
		ClientId: client, Input: in, Output: out,
		Call: call.Sub(h.start).Nanoseconds(), Return: time.Since(h.start).Nanoseconds(),
	})
}

// checkModels checks that the history of the calls is linearizable.
func (h *history) checkModels() error {
	check := func(what string, m porcupine.Model, ops []porcupine.Operation) error {
		switch porcupine.CheckOperationsTimeout(m, ops, checkLimit) {
		case porcupine.Illegal:
			return fmt.Errorf("the history of %s is not linearizable:\n%s", what, describe(m, ops))
		case porcupine.Unknown:
			return fmt.Errorf("the history of %s could not be checked within %v", what, checkLimit)
		}
		return nil
	}
	err := check("the leases", model, h.ops)
	for _, part := range registers.Partition(h.accessOps) {
		err = cmp.Or(err, check(part[0].Input.(accessInput).key, registers, part))
	}
	return err
}

// The model of registers rejects the faults that the torture looks for.
func TestRegistersFindFaults(t *testing.T) {
	at := func(call int64, in accessInput, out accessOutput) porcupine.Operation {
		in.key = "x"
		return porcupine.Operation{Input: in, Output: out, Call: call, Return: call + 1}
	}
	put := func(version uint64, value string) accessInput {
		return accessInput{kind: "put", version: version, value: value}
	}
	read := accessInput{kind: "read"}
	made := at(0, put(0, "a"), accessOutput{version: 5})
	deleted := at(2, accessInput{kind: "delete", version: 5}, accessOutput{})
	loose := func(o porcupine.Operation) porcupine.Operation {
		in := o.Input.(accessInput)
		in.loose = true
		o.Input = in
		return o
	}
	tests := []struct {
		name string
		ops  []porcupine.Operation
		want bool
	}{
		{"in order", []porcupine.Operation{made, at(2, put(5, "b"), accessOutput{version: 9}), at(4, read, accessOutput{version: 9, value: "b"})}, true},
		{"a stale version is accepted", []porcupine.Operation{
			made, at(2, put(5, "b"), accessOutput{version: 9}), at(4, put(5, "c"), accessOutput{version: 11}),
		}, false},
		{"a stale version is refused", []porcupine.Operation{
			made, at(2, put(5, "b"), accessOutput{version: 9}), at(4, put(5, "c"), accessOutput{version: 9, conflict: true}),
		}, true},
		{"the newest version is refused", []porcupine.Operation{made, at(2, put(5, "b"), accessOutput{version: 5, conflict: true})}, false},
		{"a change is lost", []porcupine.Operation{made, at(2, put(5, "b"), accessOutput{version: 9}), at(4, read, accessOutput{version: 5, value: "a"})}, false},
		{"gone", []porcupine.Operation{made, deleted, at(4, read, accessOutput{})}, true},
		{"back after its end", []porcupine.Operation{made, deleted, at(4, read, accessOutput{version: 5, value: "a"})}, false},
		{"a token of a deleted tenant", []porcupine.Operation{made, deleted, at(4, accessInput{kind: "token"}, accessOutput{})}, false},
		{"no token of a tenant", []porcupine.Operation{made, at(4, accessInput{kind: "token"}, accessOutput{missing: true})}, false},
		{"deleted by an earlier attempt", []porcupine.Operation{made, at(2, accessInput{kind: "delete", version: 5}, accessOutput{missing: true, ambiguous: true})}, true},
		{"cordoned", []porcupine.Operation{loose(at(0, put(3, "drained"), accessOutput{})), loose(at(2, read, accessOutput{version: 9, value: "drained"}))}, true},
		{"the cordon is lost", []porcupine.Operation{loose(at(0, put(3, "drained"), accessOutput{})), loose(at(2, read, accessOutput{version: 9}))}, false},
		{"a stale uncordon", []porcupine.Operation{
			loose(at(0, put(3, "drained"), accessOutput{})), loose(at(2, read, accessOutput{version: 9, value: "drained"})), loose(at(4, put(7, ""), accessOutput{})),
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := porcupine.CheckOperations(registers, tt.ops); got != tt.want {
				t.Errorf("linearizable: %v, want %v", got, tt.want)
			}
		})
	}
}
