package auth

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// TestEveryCallHasARule checks that each call of the API has a rule, and each rule a
// call. A call without a rule is denied to all callers.
func TestEveryCallHasARule(t *testing.T) {
	calls := map[string]bool{}
	for _, f := range []protoreflect.FileDescriptor{dxpuv1.File_dxpu_v1_dxpu_proto, dxpuv1.File_dxpu_v1_node_proto} {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				name := "/" + string(s.FullName()) + "/" + string(s.Methods().Get(j).Name())
				calls[name] = true
				if _, ok := Lookup(name); !ok {
					t.Errorf("%s has no rule in auth/table.go", name)
				}
			}
		}
	}
	for _, p := range Procedures() {
		if !calls[p] {
			t.Errorf("%s has a rule, but the API has no such call", p)
		}
	}
}

// TestRulesHold checks properties that the rules of all calls must have.
func TestRulesHold(t *testing.T) {
	for _, p := range Procedures() {
		r, _ := Lookup(p)
		switch p {
		case node + "Enroll", pool + "GetSignIn", pool + "SignIn": // the ways to a credential
		case node + "WatchDesired", node + "Report", node + "Renew":
			if r.Admin != Deny || r.Host != Own || r.Box != Own {
				t.Errorf("%s: want access for the node itself only", p)
			}
		default:
			if r.Admin != Allow {
				t.Errorf("%s: want all access for admins", p)
			}
			if r.Tenant == Allow || r.Host == Allow || r.Box == Allow {
				t.Errorf("%s: want tenants and nodes limited to their own objects", p)
			}
			if r.Anonymous != Deny {
				t.Errorf("%s: want no access without a credential", p)
			}
		}
		if r.Operator > r.Admin || r.Tenant > r.Operator && p != node+"Enroll" {
			t.Errorf("%s: a lower role has more access than a higher one", p)
		}
	}
	if r, ok := Lookup("/dxpu.v1.PoolService/Frobnicate"); ok || r.Admin != Deny {
		t.Error("a call without a rule is not denied")
	}
	if got := (Rule{Admin: Allow}).For(dxpuv1.Role(99)); got != Deny {
		t.Errorf("an unknown role may %v", got)
	}
}
