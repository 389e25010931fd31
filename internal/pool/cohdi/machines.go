package cohdi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// The JSON of the interface. Field names are the components'.
type (
	data struct {
		Data machines `json:"data"`
	}
	machines struct {
		Machines []machine `json:"machines"`
	}
	machine struct {
		FabricUUID   string     `json:"fabric_uuid"`
		FabricID     int        `json:"fabric_id"`
		UUID         string     `json:"mach_uuid"`
		ID           uint32     `json:"mach_id"`
		Name         string     `json:"mach_name"`
		Tenant       string     `json:"tenant_uuid"`
		Status       int        `json:"mach_status"`
		StatusDetail string     `json:"mach_status_detail"`
		Resources    []resource `json:"resources"`
	}
	resource struct {
		UUID     string        `json:"res_uuid"`
		Name     string        `json:"res_name"`
		Type     string        `json:"res_type"`
		Status   int           `json:"res_status"`
		OpStatus string        `json:"res_op_status"`
		Serial   string        `json:"res_serial_num"`
		Spec     specification `json:"res_spec"`
	}
	specification struct {
		Condition []condition `json:"condition"`
	}
	condition struct {
		Column   string `json:"column"`
		Operator string `json:"operator"`
		Value    string `json:"value"`
	}
	free struct {
		FabricID int `json:"fabric_id"`
		Number   int `json:"reserved_res_num_per_fabric"`
	}
)

const (
	// The pool is one fabric: each GPU reaches each host.
	fabricID   = 1
	fabricUUID = "dxpu"
	// gpuType is the only type of resources.
	gpuType = "gpu"
	// pageSize is the largest of the API.
	pageSize = 1000
	// maxAvailable is the largest number that composable-dra-driver accepts.
	maxAvailable = 128
)

// Values of res_op_status.
const (
	opNormal   = "0"
	opWarning  = "1"
	opCritical = "2"
)

// listMachines lists the hosts with their resources.
func listMachines(ctx context.Context, c *call) (any, error) {
	all, err := c.machines(ctx)
	return data{machines{all}}, err
}

// getMachine returns one host.
func getMachine(ctx context.Context, c *call) (any, error) {
	res, err := c.api.GetHost(ctx, connect.NewRequest(&dxpuv1.GetHostRequest{HostId: c.machine}))
	if err != nil {
		return nil, err
	}
	of, err := c.resources(ctx)
	if err != nil {
		return nil, err
	}
	return data{machines{[]machine{c.describe(res.Msg.Host, of[c.machine])}}}, nil
}

func (c *call) machines(ctx context.Context) ([]machine, error) {
	of, err := c.resources(ctx)
	if err != nil {
		return nil, err
	}
	out := []machine{}
	for req := (&dxpuv1.ListHostsRequest{PageSize: pageSize}); ; {
		res, err := c.api.ListHosts(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, err
		}
		for _, h := range res.Msg.Hosts {
			out = append(out, c.describe(h, of[h.Node.Id]))
		}
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			return out, nil
		}
	}
}

func (c *call) describe(h *dxpuv1.Host, of []resource) machine {
	m := machine{
		FabricUUID: fabricUUID, FabricID: fabricID, UUID: h.Node.Id, ID: h.Node.Number, Name: h.Node.Name, Tenant: c.tenant,
		StatusDetail: "connected", Resources: of,
	}
	if !h.Node.Connected {
		m.Status, m.StatusDetail = 1, "the host does not report"
	}
	if m.Resources == nil {
		m.Resources = []resource{}
	}
	return m
}

// resources returns the GPUs that the tenant has added, by host: of one host if the call
// names one.
func (c *call) resources(ctx context.Context) (map[string][]resource, error) {
	owned, err := c.leases(ctx)
	if err != nil || len(owned) == 0 {
		return nil, err
	}
	out := map[string][]resource{}
	for req := (&dxpuv1.ListGPUsRequest{PageSize: pageSize, HostId: c.machine}); ; {
		res, err := c.api.ListGPUs(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, err
		}
		for _, g := range res.Msg.Gpus {
			if owned[g.LeaseId] != nil {
				out[g.HostId] = append(out[g.HostId], resourceOf(g))
			}
		}
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			break
		}
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b resource) int { return cmp.Compare(a.UUID, b.UUID) })
	}
	return out, nil
}

// leases returns the active leases of the interface that belong to the tenant, by ID.
func (c *call) leases(ctx context.Context) (map[string]*dxpuv1.Lease, error) {
	out := map[string]*dxpuv1.Lease{}
	for req := (&dxpuv1.ListLeasesRequest{PageSize: pageSize, Tenant: c.tenant, HostId: c.machine}); ; {
		res, err := c.api.ListLeases(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, err
		}
		for _, l := range res.Msg.Leases {
			if l.Spec.Labels[Label] != "" && (l.State == dxpuv1.LeaseState_LEASE_STATE_ACTIVE || l.State == dxpuv1.LeaseState_LEASE_STATE_DEGRADED) {
				out[l.Id] = l
			}
		}
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			return out, nil
		}
	}
}

func resourceOf(g *dxpuv1.GPU) resource {
	r := resource{
		UUID: g.Id, Name: g.Id, Type: gpuType, OpStatus: opNormal, Serial: g.Device.GetSerial(),
		Spec: specification{[]condition{{"model", "eq", g.Device.GetModel()}}},
	}
	switch g.Health {
	case dxpuv1.Health_HEALTH_DEGRADED:
		r.OpStatus = opWarning
	case dxpuv1.Health_HEALTH_FAILED, dxpuv1.Health_HEALTH_UNREACHABLE:
		r.OpStatus = opCritical
	}
	return r
}

// available returns the number of free GPUs of a model.
func available(ctx context.Context, c *call) (any, error) {
	q := c.request.URL.Query()
	if t := q.Get("res_type"); t != gpuType {
		return nil, invalid("res_type is %q; the pool has %s only", t, gpuType)
	}
	var want condition
	if text := q.Get("condition"); text != "" {
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			return nil, invalid("condition: %v", err)
		}
	}
	model, err := modelOf([]condition{want})
	if err != nil {
		return nil, err
	}
	if _, err := c.api.GetHost(ctx, connect.NewRequest(&dxpuv1.GetHostRequest{HostId: c.machine})); err != nil {
		return nil, err
	}
	n := 0
	for req := (&dxpuv1.ListGPUsRequest{PageSize: pageSize, Model: model, State: dxpuv1.GPUState_GPU_STATE_FREE}); ; {
		res, err := c.api.ListGPUs(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, err
		}
		for _, g := range res.Msg.Gpus {
			if g.Health == dxpuv1.Health_HEALTH_OK && !g.Cordoned && g.QuarantinedUntil == nil {
				n++
			}
		}
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			break
		}
	}
	pool, err := c.api.GetPool(ctx, connect.NewRequest(&dxpuv1.GetPoolRequest{}))
	if err != nil {
		return nil, err
	}
	for _, s := range pool.Msg.Pool.Spares {
		if s.Model == model {
			n = min(n, int(s.Free)) - int(s.Held) // no lease gets the spares, and no other host local GPUs
		}
	}
	return free{fabricID, max(0, min(n, maxAvailable))}, nil
}

// modelOf returns the model of a condition: the only form that the components use.
func modelOf(list []condition) (string, error) {
	if len(list) != 1 || list[0].Column != "model" || list[0].Operator != "eq" || list[0].Value == "" {
		return "", invalid("want one condition: column model, operator eq and the name of a model; got %v", list)
	}
	return list[0].Value, nil
}

// String returns the condition as text, for errors.
func (c condition) String() string { return fmt.Sprintf("%s %s %q", c.Column, c.Operator, c.Value) }
