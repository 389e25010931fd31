package auth

import (
	"maps"
	"slices"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Access is what a role may do with a call.
type Access uint8

const (
	// Deny: the call is refused.
	Deny Access = iota
	// Own: the call sees and touches what is the caller's own; everything else
	// is, to this caller, as if it did not exist.
	Own
	// Allow: the call sees and touches everything.
	Allow
)

// String is the word in the table of docs/security.md.
func (a Access) String() string {
	switch a {
	case Allow:
		return "all"
	case Own:
		return "own"
	default:
		return "–"
	}
}

// Rule is what each role may do with one call.
type Rule struct {
	Admin, Operator, Tenant, Host, Box, Anonymous Access
	// Changes: the call changes the pool, so it is audited.
	Changes bool
}

// For returns what a role may do; ROLE_UNSPECIFIED is a caller without a credential.
func (r Rule) For(role dxpuv1.Role) Access {
	switch role {
	case dxpuv1.Role_ROLE_ADMIN:
		return r.Admin
	case dxpuv1.Role_ROLE_OPERATOR:
		return r.Operator
	case dxpuv1.Role_ROLE_TENANT:
		return r.Tenant
	case dxpuv1.Role_ROLE_HOST:
		return r.Host
	case dxpuv1.Role_ROLE_BOX:
		return r.Box
	case dxpuv1.Role_ROLE_UNSPECIFIED:
		return r.Anonymous
	default:
		return Deny
	}
}

const (
	pool = "/dxpu.v1.PoolService/"
	node = "/dxpu.v1.NodeService/"
)

// The columns: admin, operator, tenant, host, box, anonymous, changes.
var rules = map[string]Rule{
	// A tenant and a host get the sums of their own, and where the managers are.
	pool + "GetPool": {Allow, Allow, Own, Own, Deny, Deny, false},
	// A tenant sees the hosts that have its leases, of them what holds its
	// leases; a host sees itself.
	pool + "ListHosts": {Allow, Allow, Own, Own, Deny, Deny, false},
	pool + "GetHost":   {Allow, Allow, Own, Own, Deny, Deny, false},
	// Boxes are shared by tenants: who is beside whom is nobody's business.
	pool + "ListBoxes": {Allow, Allow, Deny, Deny, Deny, Deny, false},
	pool + "GetBox":    {Allow, Allow, Deny, Deny, Deny, Deny, false},
	// The GPUs of one's leases.
	pool + "ListGPUs": {Allow, Allow, Own, Own, Deny, Deny, false},
	pool + "GetGPU":   {Allow, Allow, Own, Own, Deny, Deny, false},
	// A tenant's leases; those on a host.
	pool + "ListLeases":   {Allow, Allow, Own, Own, Deny, Deny, false},
	pool + "GetLease":     {Allow, Allow, Own, Own, Deny, Deny, false},
	pool + "CreateLease":  {Allow, Allow, Own, Own, Deny, Deny, true},
	pool + "DeleteLease":  {Allow, Allow, Own, Own, Deny, Deny, true},
	pool + "ResizeLease":  {Allow, Allow, Own, Own, Deny, Deny, true},
	pool + "ExplainLease": {Allow, Allow, Own, Own, Deny, Deny, false},
	pool + "ReplugGPU":    {Allow, Allow, Own, Own, Deny, Deny, true},

	pool + "ReplaceGPU":     {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "Cordon":         {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "Uncordon":       {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "Drain":          {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "ClearGPUErrors": {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "DeleteNode":     {Allow, Allow, Deny, Deny, Deny, Deny, true},

	pool + "ListTenants":  {Allow, Allow, Deny, Deny, Deny, Deny, false},
	pool + "GetTenant":    {Allow, Allow, Own, Deny, Deny, Deny, false},
	pool + "PutTenant":    {Allow, Deny, Deny, Deny, Deny, Deny, true},
	pool + "DeleteTenant": {Allow, Deny, Deny, Deny, Deny, Deny, true},

	pool + "CreateToken": {Allow, Deny, Deny, Deny, Deny, Deny, true},
	pool + "ListTokens":  {Allow, Deny, Deny, Deny, Deny, Deny, false},
	pool + "DeleteToken": {Allow, Deny, Deny, Deny, Deny, Deny, true},
	pool + "WhoAmI":      {Allow, Allow, Own, Own, Own, Deny, false},
	pool + "ListAudit":   {Allow, Allow, Deny, Deny, Deny, Deny, false},
	// The backup holds every secret of the pool: that it was read is noted too.
	pool + "Backup": {Allow, Deny, Deny, Deny, Deny, Deny, true},

	// A tenant sees the events of its leases, a host those on itself.
	pool + "ListEvents":  {Allow, Allow, Own, Own, Deny, Deny, false},
	pool + "WatchEvents": {Allow, Allow, Own, Own, Deny, Deny, false},

	// The join token in the request is what counts.
	node + "Enroll": {Allow, Allow, Allow, Allow, Allow, Allow, true},
	// A node speaks for itself, and nobody else does: what it should have holds keys.
	node + "WatchDesired": {Deny, Deny, Deny, Own, Own, Deny, false},
	node + "Report":       {Deny, Deny, Deny, Own, Own, Deny, false},
	node + "Renew":        {Deny, Deny, Deny, Own, Own, Deny, true},
}

// Lookup returns the rule of a call, such as "/dxpu.v1.PoolService/GetPool". A
// call without a rule gets the zero Rule, which denies it to everybody.
func Lookup(procedure string) (Rule, bool) {
	r, ok := rules[procedure]
	return r, ok
}

// Procedures returns the names of all calls that have a rule, in order.
func Procedures() []string { return slices.Sorted(maps.Keys(rules)) }
