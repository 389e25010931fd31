package auth

import (
	"maps"
	"slices"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Access says which objects a role may see and change by a call.
type Access uint8

const (
	// Deny refuses the call.
	Deny Access = iota
	// Own limits the call to the caller's own objects and hides all others.
	Own
	// Allow gives access to all objects.
	Allow
)

// String returns the word used in the table of docs/security.md.
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

// Rule is the access of each role to one call.
type Rule struct {
	Admin, Operator, Tenant, Host, Box, Anonymous Access
	// Changes reports whether the call changes the pool; such calls are audited.
	Changes bool
}

// For returns the access of a role. ROLE_UNSPECIFIED is a caller without a credential.
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
	// A tenant and a host get the totals of their own leases, and the managers.
	pool + "GetPool": {Allow, Allow, Own, Own, Deny, Deny, false},
	// The occupancy of the whole pool.
	pool + "GetPoolHistory": {Allow, Allow, Deny, Deny, Deny, Deny, false},
	// A tenant sees the slots of its leases and their hosts; a host sees itself.
	pool + "ListHosts": {Allow, Allow, Own, Own, Deny, Deny, false},
	pool + "GetHost":   {Allow, Allow, Own, Own, Deny, Deny, false},
	// Tenants share boxes, and must not learn of each other.
	pool + "ListBoxes": {Allow, Allow, Deny, Deny, Deny, Deny, false},
	pool + "GetBox":    {Allow, Allow, Deny, Deny, Deny, Deny, false},
	// A tenant sees the GPUs of its leases, a host those attached to it.
	pool + "ListGPUs": {Allow, Allow, Own, Own, Deny, Deny, false},
	pool + "GetGPU":   {Allow, Allow, Own, Own, Deny, Deny, false},
	// A tenant sees its leases, a host the leases on it.
	pool + "ListLeases":  {Allow, Allow, Own, Own, Deny, Deny, false},
	pool + "GetLease":    {Allow, Allow, Own, Own, Deny, Deny, false},
	pool + "CreateLease": {Allow, Allow, Own, Own, Deny, Deny, true},
	pool + "DeleteLease": {Allow, Allow, Own, Own, Deny, Deny, true},
	pool + "ResizeLease": {Allow, Allow, Own, Own, Deny, Deny, true},
	// A renewal is frequent and changes no record, so it is not audited.
	pool + "RenewLease":   {Allow, Allow, Own, Own, Deny, Deny, false},
	pool + "ExplainLease": {Allow, Allow, Own, Own, Deny, Deny, false},
	// Each change of a preview needs the right to make it.
	pool + "Preview":   {Allow, Allow, Own, Own, Deny, Deny, false},
	pool + "ReplugGPU": {Allow, Allow, Own, Own, Deny, Deny, true},

	pool + "ReplaceGPU":      {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "MigrateLease":    {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "CancelMigration": {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "Cordon":          {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "Uncordon":        {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "Drain":           {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "SetTaints":       {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "PlanMaintenance": {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "ListMaintenance": {Allow, Allow, Deny, Deny, Deny, Deny, false},
	pool + "EndMaintenance":  {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "ClearGPUErrors":  {Allow, Allow, Deny, Deny, Deny, Deny, true},
	pool + "DeleteNode":      {Allow, Allow, Deny, Deny, Deny, Deny, true},

	pool + "ListTenants":  {Allow, Allow, Deny, Deny, Deny, Deny, false},
	pool + "GetTenant":    {Allow, Allow, Own, Deny, Deny, Deny, false},
	pool + "PutTenant":    {Allow, Deny, Deny, Deny, Deny, Deny, true},
	pool + "DeleteTenant": {Allow, Deny, Deny, Deny, Deny, Deny, true},

	pool + "CreateToken":     {Allow, Deny, Deny, Deny, Deny, Deny, true},
	pool + "ListTokens":      {Allow, Deny, Deny, Deny, Deny, Deny, false},
	pool + "DeleteToken":     {Allow, Deny, Deny, Deny, Deny, Deny, true},
	pool + "GetAuthority":    {Allow, Allow, Deny, Deny, Deny, Deny, false},
	pool + "RotateAuthority": {Allow, Deny, Deny, Deny, Deny, Deny, true},
	// The way to a credential: everybody.
	pool + "GetSignIn":     {Allow, Allow, Allow, Allow, Allow, Allow, false},
	pool + "SignIn":        {Allow, Allow, Allow, Allow, Allow, Allow, true},
	pool + "WhoAmI":        {Allow, Allow, Own, Own, Own, Deny, false},
	pool + "ListAudit":     {Allow, Allow, Deny, Deny, Deny, Deny, false},
	pool + "ReplaceMember": {Allow, Deny, Deny, Deny, Deny, Deny, true},
	// A backup holds every secret of the pool, so reading it is audited too.
	pool + "Backup": {Allow, Deny, Deny, Deny, Deny, Deny, true},

	// A tenant sees the events of its leases, a host its own events.
	pool + "ListEvents":  {Allow, Allow, Own, Own, Deny, Deny, false},
	pool + "WatchEvents": {Allow, Allow, Own, Own, Deny, Deny, false},
	// A tenant sees its leases, a host the leases on it.
	pool + "WatchLeases": {Allow, Allow, Own, Own, Deny, Deny, false},

	// Enroll is authenticated by the join token in the request.
	node + "Enroll": {Allow, Allow, Allow, Allow, Allow, Allow, true},
	// Only the node itself: its desired state holds keys, and its report is trusted.
	node + "WatchDesired": {Deny, Deny, Deny, Own, Own, Deny, false},
	node + "Report":       {Deny, Deny, Deny, Own, Own, Deny, false},
	node + "Renew":        {Deny, Deny, Deny, Own, Own, Deny, true},
}

// Lookup returns the rule of a call, such as "/dxpu.v1.PoolService/GetPool". A call
// without a rule gets the zero Rule, which denies it to all callers.
func Lookup(procedure string) (Rule, bool) {
	r, ok := rules[procedure]
	return r, ok
}

// Procedures returns the names of all calls that have a rule, sorted.
func Procedures() []string { return slices.Sorted(maps.Keys(rules)) }
