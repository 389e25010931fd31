// Package inventory describes the GPUs of a pool as devices of Kubernetes: names,
// attributes, capacity and taints. It is a function of its input.
package inventory

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/performance"
)

// The names by which Kubernetes knows the driver.
const (
	Driver = "gpu.dxpu.dev"
	// HostLabel is the label of a node that names the host of the pool, by ID, whose slots
	// belong to the node. Nodes without it get no GPUs. The prefix keeps a kubelet from setting
	// it (admission plugin NodeRestriction): a node that is taken over would get the GPUs of another.
	HostLabel = "dxpu.dev.node-restriction.kubernetes.io/host"

	// Attached is the binding condition: the scheduler binds the pod when it is true.
	Attached = "dxpu.dev/Attached"
	// Failed is the binding failure condition: the scheduler gives the device back.
	Failed = "dxpu.dev/Failed"
	// Healthy is false while the pool calls the GPU of an attached device anything but healthy. It
	// is absent for a GPU that has always been.
	Healthy = "dxpu.dev/Healthy"
)

// The keys of the taints of devices. All of them go when their cause does.
const (
	TaintHealth     = "dxpu.dev/health"     // the value is the health
	TaintCordoned   = "dxpu.dev/cordoned"   // an operator keeps new pods away
	TaintDraining   = "dxpu.dev/draining"   // an operator takes the GPU or its box out of service
	TaintQuarantine = "dxpu.dev/quarantine" // too many errors
	TaintLeased     = "dxpu.dev/leased"     // a user outside of this cluster has it
	TaintOperator   = "dxpu.dev/taint"      // a taint whose key Kubernetes does not allow
	TaintSpare      = "dxpu.dev/spare"      // the free GPUs of the model are held back as spares
	TaintLost       = "dxpu.dev/lost"       // the lease of the claim that has it has ended
)

// State is the part of the pool that decides what the scheduler may see.
type State struct {
	GPUs []*dxpuv1.GPU
	// Spares of each model, as in the answer of GetPool.
	Spares []*dxpuv1.SpareStatus
	// Hosts of the pool, by ID, that nodes of the cluster name.
	Hosts map[string]*dxpuv1.Host
	// Nodes of the cluster, by name, with the host that each names.
	Nodes map[string]string
	// Queued is the number of slots for which this cluster's leases wait, by host.
	Queued map[string]int
	// Ours has the IDs of the leases that belong to this cluster.
	Ours map[string]bool
	// Uses are what the claims of this cluster have of the devices.
	Uses Uses
	// Lost has the names of the devices whose claim has lost its lease.
	Lost map[string]bool
	// BoxTaints are the taints that operators gave the boxes, by ID.
	BoxTaints map[string][]*dxpuv1.Taint
	// BoxLabels are the labels of the boxes, by ID.
	BoxLabels map[string]map[string]string
	// Performance has the predictions for workloads.
	Performance performance.Table
	// WholeGPUs offers no parts of GPUs.
	WholeGPUs bool
	// Before is the inventory that is replaced, nil for none.
	Before *Inventory
}

// Inventory is the devices of a pool.
type Inventory struct {
	Devices []resourceapi.Device
	gpus    map[string]string // device -> GPU
	shared  map[string]shared // device -> how it is divided
	left    leftOut
	usedUp  []string // boxes whose GPUs this cluster's claims have, all of each, sorted
	// local has the boxes whose GPUs are for one node, and this node, "" for none.
	local map[string]string
	// kept has the boxes without a free device whose slices leave out other nodes than left.
	kept  map[string]leftOut
	boxes map[string]bool // those with devices
}

// GPU returns the ID of the GPU that a device stands for.
func (i *Inventory) GPU(device string) (string, bool) {
	id, ok := i.gpus[device]
	return id, ok
}

// Local reports whether a device is a GPU of a host's own machine.
func (i *Inventory) Local(device string) bool {
	box, _, _ := strings.Cut(i.gpus[device], "/")
	_, is := i.local[box]
	return is
}

// Equal reports whether two inventories have the same devices for the same nodes.
func (i *Inventory) Equal(o *Inventory) bool {
	return equality.Semantic.DeepEqual(i.Devices, o.Devices) && maps.Equal(i.gpus, o.gpus) && i.left.equal(o.left) &&
		slices.Equal(i.usedUp, o.usedUp) && maps.Equal(i.local, o.local) && maps.EqualFunc(i.kept, o.kept, leftOut.equal)
}

// New returns the devices for a state, ordered by name.
func New(s State) *Inventory {
	inv := &Inventory{gpus: map[string]string{}, shared: map[string]shared{}, local: localBoxes(s)}
	spare, room, free := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, m := range s.Spares {
		spare[m.Model] = m.Free <= m.Held && m.Held > 0
	}
	for _, g := range s.GPUs {
		if g.Device == nil {
			continue
		}
		d := s.device(g)
		used := !s.WholeGPUs && usedUp(g, s.Ours, s.Uses[d.Name])
		room[g.BoxId] = room[g.BoxId] || !used
		free[g.BoxId] = free[g.BoxId] || !used && !s.Uses[d.Name].whole
		others := g.LeaseId != "" && !s.Ours[g.LeaseId]
		switch {
		case !s.WholeGPUs && divisible(g):
			// Also while the pool shows the lease of an earlier claim: the device stays as the
			// scheduler knows it, and Part knows the whole.
			others = !inv.divide(&d, g, s) || others
		case g.State == dxpuv1.GPUState_GPU_STATE_SHARED:
			others = true
		}
		d.Taints = append(taints(g, others, spare[g.Device.Model] && g.LocalHost == "", s.Lost[d.Name]), operatorTaints(s.BoxTaints[g.BoxId], g.Taints)...)
		d.Taints = d.Taints[:min(len(d.Taints), resourceapi.DeviceTaintsMaxLength)]
		inv.gpus[d.Name] = g.Id
		inv.Devices = append(inv.Devices, d)
	}
	inv.left = leaveOut(s)
	inv.keep(s.Before, free)
	inv.boxes = room
	for box, has := range room {
		if !has {
			inv.usedUp = append(inv.usedUp, box)
		}
	}
	slices.Sort(inv.usedUp)
	slices.SortFunc(inv.Devices, func(a, b resourceapi.Device) int { return cmp.Compare(a.Name, b.Name) })
	return inv
}

// devicesPerSlice is the API server's bound for devices with taints.
const devicesPerSlice = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// poolPrefix begins the names of the resource pools.
const poolPrefix = "dxpu/"

// Resources returns the devices in the form that package resourceslice publishes. Each box
// is a resource pool of its own, for all nodes, or for one if its GPUs are those of the node's
// own machine. A pool of all boxes would have many slices, and the scheduler allocates none of
// its devices until it has seen all of them in the same generation. A change of the node
// selector makes a new generation.
//
// A box that is used up is for no node. The scheduler evaluates the selectors of a request for
// every device that can be divided, on every node, before it looks at what is left of it: with
// a thousand such devices most of its time goes there. A box whose devices are all allocated, and
// cannot be divided, keeps the selector that it had.
func (i *Inventory) Resources() *resourceslice.DriverResources {
	out := &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{}}
	byBox := map[string][]resourceapi.Device{}
	for _, d := range i.Devices {
		box := *d.Attributes["box"].StringValue
		byBox[box] = append(byBox[box], d)
	}
	for box, devices := range byBox {
		p := i.forNodes(box)
		for part := range slices.Chunk(devices, devicesPerSlice) {
			p.Slices = append(p.Slices, resourceslice.Slice{Devices: part})
		}
		out.Pools[poolPrefix+label(box, box)] = p
	}
	if len(out.Pools) == 0 { // the driver runs, and has no devices
		p := i.left.pool()
		p.Slices = []resourceslice.Slice{{}}
		out.Pools[poolPrefix+"none"] = p
	}
	return out
}

// forNodes returns the resource pool of a box, without its slices.
func (i *Inventory) forNodes(box string) resourceslice.Pool {
	if _, found := slices.BinarySearch(i.usedUp, box); found {
		return resourceslice.Pool{NodeSelector: noNodes()}
	}
	if node, is := i.local[box]; is {
		return resourceslice.Pool{NodeSelector: named(corev1.NodeSelectorOpIn, cmp.Or(node, noNode))}
	}
	if left, is := i.kept[box]; is {
		return left.pool()
	}
	return i.left.pool()
}

func (s *State) device(g *dxpuv1.GPU) resourceapi.Device {
	yes, labels := true, s.BoxLabels[g.BoxId]
	d := resourceapi.Device{
		Name:                     DeviceName(g.Id),
		Attributes:               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity:                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
		BindsToNode:              &yes,
		BindingConditions:        []string{Attached},
		BindingFailureConditions: []string{Failed},
	}
	text := func(name resourceapi.QualifiedName, v string) {
		if v != "" {
			v = truncate(v)
			d.Attributes[name] = resourceapi.DeviceAttribute{StringValue: &v}
		}
	}
	number := func(name resourceapi.QualifiedName, v int64) {
		d.Attributes[name] = resourceapi.DeviceAttribute{IntValue: &v}
	}
	text("gpu", g.Id)
	text("model", g.Device.Model)
	text("generation", generation(g.Device, labels[LabelGeneration]))
	text("box", g.BoxId)
	text("localHost", g.LocalHost)
	number("slot", int64(g.Slot))
	text("boxKind", boxKinds[g.BoxKind])
	text("serial", g.Device.Serial)
	text("pcieSwitch", g.Device.PcieSwitch)
	if domain := g.Device.NvlinkDomain; domain != "" {
		text("nvlinkDomain", g.BoxId+"/"+domain) // a domain is part of one box
	}
	number("vendorID", int64(g.Device.VendorId))
	number("deviceID", int64(g.Device.DeviceId))
	d.Capacity["memory"] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(g.Device.MemoryBytes), resource.BinarySI)}
	s.predicted(&d, labels[LabelRTT])
	return d
}

// SetRacks adds the rack of each device's box. The racks are those of the boxes, by ID.
func (i *Inventory) SetRacks(racks map[string]string) {
	for at := range i.Devices {
		d := &i.Devices[at]
		if rack := racks[*d.Attributes["box"].StringValue]; rack != "" {
			rack = truncate(rack)
			d.Attributes["rack"] = resourceapi.DeviceAttribute{StringValue: &rack}
		}
	}
}

var boxKinds = map[dxpuv1.BoxKind]string{
	dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH: "pcie-switch", dxpuv1.BoxKind_BOX_KIND_NVLINK: "nvlink",
}

func truncate(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), resourceapi.DeviceAttributeMaxValueLength)], "")
}

// taints returns the taints of a GPU, each for one cause.
func taints(g *dxpuv1.GPU, others, spare, lost bool) []resourceapi.DeviceTaint {
	var out []resourceapi.DeviceTaint
	add := func(is bool, key, value string, effect resourceapi.DeviceTaintEffect) {
		if is {
			out = append(out, resourceapi.DeviceTaint{Key: key, Value: value, Effect: effect})
		}
	}
	const noNew, evict = resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute
	add(lost, TaintLost, "", evict)
	add(g.Health == dxpuv1.Health_HEALTH_FAILED, TaintHealth, "failed", evict)
	add(g.Health == dxpuv1.Health_HEALTH_DEGRADED, TaintHealth, "degraded", noNew)
	// The binding of a box that does not report may work. If it does not, its lease says so.
	add(g.Health == dxpuv1.Health_HEALTH_UNREACHABLE, TaintHealth, "unreachable", noNew)
	add(g.Draining, TaintDraining, "", evict)
	add(g.Cordoned && !g.Draining, TaintCordoned, "", noNew)
	add(g.QuarantinedUntil != nil, TaintQuarantine, "", noNew)
	add(others, TaintLeased, "", noNew)
	add(spare && g.State == dxpuv1.GPUState_GPU_STATE_FREE, TaintSpare, "", noNew)
	// The box is cordoned or unstable.
	add(g.State == dxpuv1.GPUState_GPU_STATE_UNAVAILABLE && len(out) == 0, TaintCordoned, "", noNew)
	return out
}

// DeviceName returns the name of the device for a GPU: a DNS label that differs for
// different GPUs.
func DeviceName(gpu string) string {
	box, slot, _ := strings.Cut(gpu, "/")
	return label(gpu, box+"-"+slot)
}

// label returns a DNS label for an ID: plain, if that is one, and otherwise one with a hash
// of the ID.
func label(id, plain string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, strings.ToLower(id))
	name = strings.Trim(name, "-")
	box, _, _ := strings.Cut(id, "/")
	if name == plain && len(name) <= maxLabel && !strings.Contains(box, "-x") {
		return name
	}
	h := fnv.New64a()
	h.Write([]byte(id))
	return strings.Trim(name[:min(len(name), maxLabel-18)], "-") + fmt.Sprintf("-x%016x", h.Sum64())
}

// maxLabel is the length of the longest DNS label.
const maxLabel = 63
