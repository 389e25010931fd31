// Package plugin is the driver's part on a node: it gives the devices of a claim to the
// containers of a pod, once the controller has attached them.
package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/cdi"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/devicedata"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// Access is how containers of the node reach a device.
type Access interface {
	// Open prepares the devices of a group and returns what they add to a container,
	// and their attributes, one entry for each device. first is the number of the first of them
	// in the claim, from 0. free returns an error for a path of the node by which another claim
	// may reach the device.
	Open(ctx context.Context, first int, devices []devicedata.Data, free func(path string) error) (cdi.Edits, []Attributes, error)
}

// Attributes are those of a device that only the node knows.
type Attributes map[string]resourceapi.DeviceAttribute

// Plugin implements kubeletplugin.DRAPlugin. Its state is the directory of CDI
// specifications, which survives it.
type Plugin struct {
	drahealth.UnimplementedDRAResourceHealthServer // embedded for the interface

	// Access is to the GPUs of boxes, Shares to those of the node's own machine. Either may be nil.
	Access, Shares Access
	CDI            cdi.Dir
	// Claim reads a claim from the API server.
	Claim func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// Host returns the host of the pool whose slots belong to this node, by ID.
	Host func(context.Context) (string, error)
	// Fatal is called for an error that only a restart can mend.
	Fatal func(error)

	prepared signal
}

var (
	_ kubeletplugin.DRAPlugin           = (*Plugin)(nil)
	_ drahealth.DRAResourceHealthServer = (*Plugin)(nil)
)

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (p *Plugin) PrepareResourceClaims(ctx context.Context, list []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	out := make(map[types.UID]kubeletplugin.PrepareResult, len(list))
	for _, claim := range list {
		devices, err := p.prepare(ctx, claim)
		out[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return out, nil
}

func (p *Plugin) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	results := slices.DeleteFunc(slices.Clone(claim.Status.Allocation.Devices.Results), func(r result) bool {
		return r.Driver != inventory.Driver || r.AdminAccess != nil && *r.AdminAccess
	})
	if len(results) == 0 {
		return nil, nil // access for monitoring adds nothing to a container
	}
	host, err := p.Host(ctx)
	if err != nil {
		return nil, err
	}
	data, err := attachedTo(host, claim, results)
	if err != nil {
		return nil, err
	}
	var specs []cdi.Device
	var out []kubeletplugin.Device
	for _, g := range groupsOf(results, data) {
		access, err := p.accessTo(g.data[0])
		if err != nil {
			return nil, err
		}
		edits, attributes, err := access.Open(ctx, len(out), g.data, func(path string) error { return p.free(path, string(claim.UID)) })
		if err != nil {
			return nil, err
		}
		name := string(claim.UID) + "-" + g.results[0].Device
		if id := g.results[0].ShareID; id != nil { // two requests may have shares of one device
			name += "-" + string(*id)
		}
		specs = append(specs, cdi.Device{Name: name, Edits: edits})
		out = append(out, g.devices(cdi.ID(name), attributes)...)
	}
	err = p.CDI.Write(cdi.Owner{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)}, specs)
	p.prepared.send()
	return out, err
}

type result = resourceapi.DeviceRequestAllocationResult

// group is the devices of a claim that are one device of CDI: those of a request, because their
// variables are lists, or those of the node's own machine, because they are one share.
type group struct {
	results []result
	data    []devicedata.Data
}

// groupsOf groups the devices of a claim. A node gets GPUs of its own machine, or of boxes.
func groupsOf(results []result, data []devicedata.Data) (out []*group) {
	local := slices.ContainsFunc(data, func(d devicedata.Data) bool { return d.Local })
	for i, r := range results {
		at := slices.IndexFunc(out, func(g *group) bool { return local || g.results[0].Request == r.Request })
		if at < 0 {
			at, out = len(out), append(out, &group{})
		}
		out[at].results, out[at].data = append(out[at].results, r), append(out[at].data, data[i])
	}
	return out
}

// devices returns the devices of a group for the kubelet. A container may have one request only:
// it gets the device of CDI by each, and of NVIDIA's devices its own.
func (g *group) devices(id string, attributes []Attributes) (out []kubeletplugin.Device) {
	first := map[string]bool{}
	for i, r := range g.results {
		d := kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, ShareID: r.ShareID, Metadata: &kubeletplugin.DeviceMetadata{Attributes: attributes[i]}}
		if !first[r.Request] {
			first[r.Request] = true
			d.CDIDeviceIDs = []string{id}
		}
		if g.data[i].Local {
			d.CDIDeviceIDs = append(d.CDIDeviceIDs, NVIDIAKind+"="+g.data[i].Serial)
		}
		out = append(out, d)
	}
	return out
}

// accessTo returns the access to a device.
func (p *Plugin) accessTo(d devicedata.Data) (Access, error) {
	switch {
	case d.Local && p.Shares == nil:
		return nil, fmt.Errorf("GPU %s is one of the node's own machine, and the plugin runs without --share-dir", d.GPU)
	case d.Local:
		return p.Shares, nil
	case p.Access == nil:
		return nil, fmt.Errorf("GPU %s is one of a box, and the plugin has the shares of this machine only: want --socket-dir or --vfio", d.GPU)
	}
	return p.Access, nil
}

// attachedTo returns the data of the devices of a claim. It refuses one that is attached to
// another host. Kubernetes does not: a pod that names its node itself may use a claim that is
// allocated for another node, and the same slot of this host has the device of another pod.
func attachedTo(host string, claim *resourceapi.ResourceClaim, results []result) ([]devicedata.Data, error) {
	data := make([]devicedata.Data, len(results))
	for i := range results {
		var err error
		if data[i], err = attached(claim, &results[i]); err != nil {
			return nil, err
		}
		if on := data[i].Host; on != host {
			return nil, fmt.Errorf("GPU %s is attached to host %q, and the host of this node is %q: the claim is for another node", data[i].GPU, on, host)
		}
	}
	return data, nil
}

// free refuses a path that another claim still has on this node: its device has been lost, and
// the slot has another one since. The runtime opens the path again when a container of the other
// claim's pod restarts.
func (p *Plugin) free(path, claim string) error {
	other, err := p.CDI.User(path, claim)
	if err != nil {
		return err
	}
	if other != nil {
		return fmt.Errorf("%s is still that of claim %s, whose pod has not ended on this node", path, other)
	}
	return nil
}

// attached returns the data that the controller has left for a device that is attached.
func attached(claim *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) (d devicedata.Data, err error) {
	device := r.Device
	if s := statusOf(claim, r); s != nil {
		if failed := meta.FindStatusCondition(s.Conditions, inventory.Failed); failed != nil && failed.Status == "True" {
			return d, fmt.Errorf("device %s is lost: %s", device, failed.Message)
		}
		at := meta.FindStatusCondition(s.Conditions, inventory.Attached)
		if at == nil || at.Status != "True" || s.Data == nil {
			if at != nil {
				return d, fmt.Errorf("device %s is not attached yet: %s", device, at.Message)
			}
			return d, fmt.Errorf("device %s is not attached yet", device)
		}
		if err := json.Unmarshal(s.Data.Raw, &d); err != nil {
			return d, fmt.Errorf("device %s: the data in the claim's status: %w", device, err)
		}
		return d, nil
	}
	return d, fmt.Errorf("device %s is not attached yet", device)
}

// statusOf returns the status of an allocated device, nil for none.
func statusOf(claim *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) *resourceapi.AllocatedDeviceStatus {
	for i := range claim.Status.Devices {
		if s := &claim.Status.Devices[i]; s.Driver == inventory.Driver && s.Device == r.Device && sameShare(r.ShareID, s.ShareID) {
			return s
		}
	}
	return nil
}

func sameShare(allocated *types.UID, status *string) bool {
	if allocated == nil || status == nil {
		return allocated == nil && status == nil
	}
	return string(*allocated) == *status
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (p *Plugin) UnprepareResourceClaims(_ context.Context, list []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := make(map[types.UID]error, len(list))
	for _, c := range list {
		out[c.UID] = p.CDI.Remove(string(c.UID))
	}
	return out, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (p *Plugin) HandleError(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, msg)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.Fatal(fmt.Errorf("%s: %w", msg, err))
	}
}
