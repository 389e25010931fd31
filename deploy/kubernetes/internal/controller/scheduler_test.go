package controller

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// shape is what a claim asks for.
type shape struct {
	devices int
	part    amount // of a GPU each; nothing: whole GPUs
	mode    string // of sharing
	local   bool   // of the node's own machine
	gang    bool   // with the other claims of its namespace that have it
	pods    int
}

// shapes are those of the claims, by namespace and name: there is room in the pool for all of them.
var shapes = map[string]shape{
	"a/c1": {devices: 1, gang: true, pods: 1}, "a/c2": {devices: 1, gang: true, pods: 1},
	"a/c3": {devices: 2, pods: 1}, "a/c4": {devices: 1, pods: 1}, "a/c5": {devices: 3, pods: 1},
	"b/c1": {devices: 1, part: amount{1, 2}, pods: 2}, "b/c2": {devices: 2, part: amount{2, 1}, pods: 1},
	"b/c3": {devices: 2, part: amount{2, 1}, local: true, pods: 1}, "b/c4": {devices: 1, part: amount{1, 3}, local: true, pods: 1},
	"b/c5": {devices: 2, part: amount{1, 3}, mode: "partition", pods: 1},
}

// inTwoSlices are the devices of a pool with two slices that claims get, in both of them.
var inTwoSlices = []string{"b5-0", "b5-1", "b5-8", "b5-9"}

// gangSize is the number of GPUs of the gang.
const gangSize = 2

// second ends the names of the pods of a claim.
var second = []string{"", "-2"}

func shapeOf(c *resourceapi.ResourceClaim) shape { return shapes[c.Namespace+"/"+c.Name] }

// claimLocked makes a claim, unless there is one of its name.
func (w *torture) claimLocked(ns, name string) {
	w.uids++
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(fmt.Sprintf("u%d", w.uids))}}
	w.version++
	c.ResourceVersion = strconv.Itoa(w.version)
	if err := w.kube.Tracker().Create(claimsOf, c, ns); err == nil {
		w.done["claims"]++
		w.named[string(c.UID)] = ns + "/" + name
	}
}

// completeGang makes the claims of the gang that are not there: without them the others wait.
func (w *torture) completeGang() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range slices.Sorted(maps.Keys(shapes)) {
		if ns, name, _ := strings.Cut(at, "/"); shapes[at].gang {
			w.claimLocked(ns, name)
		}
	}
}

// podsLocked returns the pods of a claim that are there.
func (w *torture) podsLocked(c *resourceapi.ResourceClaim) (out []*corev1.Pod) {
	for _, r := range c.Status.ReservedFor {
		obj, err := w.kube.Tracker().Get(podsOfCore, c.Namespace, r.Name)
		if err == nil && obj.(*corev1.Pod).UID == r.UID {
			out = append(out, obj.(*corev1.Pod).DeepCopy())
		}
	}
	return out
}

// schedule does what the scheduler and the controllers of Kubernetes do for all claims.
func (w *torture) schedule() {
	w.mu.Lock()
	defer w.mu.Unlock()
	used := map[string]amount{} // of each device
	for _, c := range w.claimsLocked() {
		if a := c.Status.Allocation; a != nil {
			for i := range a.Devices.Results {
				r := &a.Devices.Results[i]
				used[r.Device] = used[r.Device].with(allocated(r))
			}
		}
	}
	for _, c := range w.claimsLocked() {
		if c.Status.Allocation == nil {
			w.allocateLocked(c, used)
			continue
		}
		failed, ready := false, true
		for i := range c.Status.Allocation.Devices.Results {
			d := statusOf(c, &c.Status.Allocation.Devices.Results[i])
			failed = failed || d != nil && isTrue(*d, inventory.Failed)
			ready = ready && d != nil && isTrue(*d, inventory.Attached)
		}
		pods := w.podsLocked(c)
		running := slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
		onNode := slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
		switch {
		case len(pods) == 0, !running && (failed && !onNode || w.chanceLocked(2)):
			for _, pod := range pods { // its user gives up
				if onNode || failed {
					w.deleteLocked(podsOfCore, pod.Namespace, pod.Name)
				}
			}
			c.Status = resourceapi.ResourceClaimStatus{}
			w.putLocked(c)
		case ready && !failed:
			w.bindLocked(c, pods)
		}
	}
}

// bindLocked runs the pods of a claim that do not run yet.
func (w *torture) bindLocked(c *resourceapi.ResourceClaim, pods []*corev1.Pod) {
	node := allocatedNode(c.Status.Allocation.NodeSelector)
	for _, pod := range pods {
		if pod.Status.Phase != "" {
			continue
		}
		if pod.Status.Phase = corev1.PodRunning; node != "" {
			pod.Spec.NodeName = node
		}
		if err := w.kube.Tracker().Update(podsOfCore, pod, pod.Namespace); err != nil {
			w.Fatal(err)
		}
		w.done["pods that run"]++
	}
}

// statusOf returns the status of an allocated device, nil for none.
func statusOf(c *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) *resourceapi.AllocatedDeviceStatus {
	share := ""
	if r.ShareID != nil {
		share = string(*r.ShareID)
	}
	return deviceStatus(c, r.Device, share)
}

// allocated returns what an allocation has of its device.
func allocated(r *resourceapi.DeviceRequestAllocationResult) amount {
	memory, divided := r.ConsumedCapacity[inventory.CapacityMemory]
	compute := r.ConsumedCapacity[inventory.CapacityCompute]
	if !divided {
		return amount{wholeGPU, wholeGPU}
	}
	return amount{int(memory.Value() / stepOfMemory), int(compute.Value() * 10 / stepOfShare)}
}

// allocateLocked allocates free devices for a claim, and a node, and makes its pods. The pod of another
// scheduler has its node from the beginning, and the claim has none.
func (w *torture) allocateLocked(c *resourceapi.ResourceClaim, used map[string]amount) {
	results := w.resultsLocked(shapeOf(c), used)
	if results == nil || w.random.IntN(4) > 0 {
		return // the scheduler tries again
	}
	node, bound := fmt.Sprintf("w%d", 1+w.random.IntN(modelHosts-1)), w.random.IntN(5) == 0
	if shapeOf(c).local {
		node = fmt.Sprintf("w%d", modelHosts)
	} else if !w.faults && w.takenLocked(node)+shapeOf(c).devices > modelSlots {
		return // a pod that is on its node would wait there for slots
	}
	now := time.Now().Add(w.clock).Truncate(time.Second)
	// A late call to delete the lease of an earlier allocation ends that of one which is the same in all.
	if same := fmt.Sprint(c.UID, now, node, results); w.allocated[same] {
		return
	} else {
		w.allocated[same] = true
	}
	for i := range results {
		used[results[i].Device] = used[results[i].Device].with(allocated(&results[i]))
	}
	c.Status.Allocation = &resourceapi.AllocationResult{
		AllocationTimestamp: &metav1.Time{Time: now}, Devices: resourceapi.DeviceAllocationResult{Results: results},
	}
	c.Status.Allocation.Devices.Config = parametersOf(shapeOf(c))
	if !bound {
		for i := range results {
			results[i].BindingConditions = []string{inventory.Attached}
		}
	}
	if !bound || shapeOf(c).local { // only one node may have a GPU of its own machine
		c.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}
	}
	for i := range shapeOf(c).pods {
		w.uids++
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name + second[i], UID: types.UID(fmt.Sprintf("p%d", w.uids))}}
		if bound {
			pod.Spec.NodeName = node
		}
		w.deleteLocked(podsOfCore, pod.Namespace, pod.Name)
		if err := w.kube.Tracker().Create(podsOfCore, pod, pod.Namespace); err != nil {
			w.Fatal(err)
		}
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	}
	w.putLocked(c)
}

// takenLocked returns the number of devices that are allocated for a node.
func (w *torture) takenLocked(node string) (n int) {
	for _, c := range w.claimsLocked() {
		if c.Status.Allocation != nil && w.nodeOfLocked(c) == node {
			n += len(c.Status.Allocation.Devices.Results)
		}
	}
	return n
}

// parametersOf returns the configuration of a claim's leases.
func parametersOf(s shape) []resourceapi.DeviceAllocationConfiguration {
	var fields string
	switch {
	case s.gang:
		fields = fmt.Sprintf(`"gang":"train","gangSize":%d`, gangSize)
	case s.mode != "":
		fields = fmt.Sprintf(`"sharing":%q`, s.mode)
	default:
		return nil
	}
	return []resourceapi.DeviceAllocationConfiguration{{
		Source: resourceapi.AllocationConfigSourceClaim,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: inventory.Driver, Parameters: runtime.RawExtension{
			Raw: fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,%s}`, claims.ParametersVersion, claims.ParametersKind, fields),
		}}},
	}}
}

// mayHave reports whether a GPU is one for a shape.
func (s shape) mayHave(g modelGPU) bool {
	switch {
	case s.local != (g.box.host != ""), g.box.gpus > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures && !slices.Contains(inTwoSlices, inventory.DeviceName(g.id)):
		return false
	case s.part == (amount{}):
		return true
	case s.mode == "partition":
		return g.box.mode == dxpuv1.ShareMode_SHARE_MODE_PARTITION
	}
	return g.box.mode == dxpuv1.ShareMode_SHARE_MODE_TIME
}

// resultsLocked returns free devices for a shape, nil if there are too few. Local ones are different GPUs.
func (w *torture) resultsLocked(s shape, used map[string]amount) (out []resourceapi.DeviceRequestAllocationResult) {
	taken, want := maps.Clone(used), s.part
	if want == (amount{}) {
		want = amount{wholeGPU, wholeGPU}
	}
	all := modelGPUs()
	for _, i := range w.random.Perm(len(all)) {
		g, device := all[i], inventory.DeviceName(all[i].id)
		for s.mayHave(g) && len(out) < s.devices && taken[device].with(want).fits() {
			taken[device] = taken[device].with(want)
			out = append(out, w.resultLocked(g, device, want))
			if s.local {
				break
			}
		}
	}
	if len(out) < s.devices {
		return nil
	}
	return out
}

func (w *torture) resultLocked(g modelGPU, device string, want amount) resourceapi.DeviceRequestAllocationResult {
	r := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: inventory.Driver, Pool: "dxpu/" + g.box.id, Device: device}
	if g.box.mode != 0 {
		w.uids++
		share := types.UID(fmt.Sprintf("s%d", w.uids))
		r.ShareID = &share
		r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
			inventory.CapacityMemory:  *resource.NewQuantity(int64(want.memory)*stepOfMemory, resource.BinarySI),
			inventory.CapacityCompute: *resource.NewQuantity(int64(want.compute)*stepOfShare/10, resource.DecimalSI),
			inventory.CapacityParts:   *resource.NewQuantity(1, resource.DecimalSI),
		}
	}
	return r
}
