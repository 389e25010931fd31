package controller

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/devicedata"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// report writes the status of a claim's devices, if it has changed, and returns the claim, nil if it
// is gone. The API server refuses it if the claim has changed since it was read, its allocation above
// all.
func (c *Controller) report(ctx context.Context, old *resourceapi.ResourceClaim, status []claims.Status) (*resourceapi.ResourceClaim, error) {
	claim := old.DeepCopy()
	attached := false
	var news []claims.Status
	for _, s := range status {
		if d := deviceStatus(claim, s.Device, s.Share); d != nil && isTrue(*d, inventory.Failed) {
			// For ever, for the first reason: the lease that is deleted then is another one. The controller
			// that has written it may have died before it said so.
			f := meta.FindStatusCondition(d.Conditions, inventory.Failed)
			news = append(news, claims.Status{Device: s.Device, Share: s.Share, Phase: claims.Failed, Reason: f.Reason, Message: f.Message})
			continue
		}
		news = append(news, s)
		if !worthReporting(claim, s) {
			continue
		}
		g := c.watch.Snapshot().GPU(gpuOf(s.Binding))
		attached = setStatus(claim, s, g) || attached
		if s.Phase == claims.Attached && s.Binding != nil {
			setHealth(claim, s, g)
		}
	}
	if equality.Semantic.DeepEqual(old.Status.Devices, claim.Status.Devices) {
		c.sayAll(old, news)
		return old, nil
	}
	written, err := c.cfg.Kube.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // the deletion is an event of its own
	}
	if err != nil {
		return nil, fmt.Errorf("report the status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	c.cfg.Metrics.reports.Inc()
	c.sayAll(written, news) // of a claim that has changed since it was read it may not be true
	if at := claim.Status.Allocation.AllocationTimestamp; attached && at != nil {
		// The clock of the scheduler may be ahead; a sum that becomes less is no counter.
		c.cfg.Metrics.attach.Observe(max(0, time.Since(at.Time).Seconds()))
	}
	return written, nil
}

// worthReporting reports whether a status says more than the allocation does: most claims
// are written once. The words of the queue change with each lease of others: the events have them.
func worthReporting(claim *resourceapi.ResourceClaim, s claims.Status) bool {
	if d := deviceStatus(claim, s.Device, s.Share); s.Phase == claims.Waiting && d != nil {
		if is := meta.FindStatusCondition(d.Conditions, inventory.Attached); is != nil && is.Reason == s.Reason {
			return false
		}
	}
	return s.Phase == claims.Attached || s.Phase == claims.Failed || s.Reason == "Queued" || deviceStatus(claim, s.Device, s.Share) != nil
}

// gpuOf returns the GPU of a binding, which may have a part of it.
func gpuOf(b *dxpuv1.Binding) string { return cmp.Or(b.GetPartOfGpuId(), b.GetGpuId()) }

// setStatus changes the status of a device, whose GPU is nil if the pool does not have it at the
// moment. It reports whether it is attached now and was not before.
func setStatus(claim *resourceapi.ResourceClaim, s claims.Status, g *dxpuv1.GPU) bool {
	d := deviceStatus(claim, s.Device, s.Share)
	if d == nil {
		n := resourceapi.AllocatedDeviceStatus{Driver: inventory.Driver, Pool: poolOf(claim, s.Device), Device: s.Device}
		if s.Share != "" {
			n.ShareID = &s.Share
		}
		claim.Status.Devices = append(claim.Status.Devices, n)
		d = &claim.Status.Devices[len(claim.Status.Devices)-1]
	}
	was := isTrue(*d, inventory.Attached)
	set := func(condition string, is bool) {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&d.Conditions, metav1.Condition{
			Type: condition, Status: status, Reason: s.Reason, Message: truncate(s.Message), ObservedGeneration: claim.Generation,
		})
	}
	switch {
	case s.Phase == claims.Failed:
		// Attached stays true if it was: a pod that had the device must be evicted.
		set(inventory.Failed, true)
		if !was {
			set(inventory.Attached, false)
		}
	case was: // a pod may run with it
	default:
		set(inventory.Attached, s.Phase == claims.Attached)
	}
	if b := s.Binding; s.Phase == claims.Attached && b != nil && (g != nil || d.Data == nil) {
		v := devicedata.Data{Lease: s.Lease, GPU: gpuOf(b), Host: b.HostId, Slot: b.HostSlot}
		if g != nil && g.LocalHost != "" {
			v.Local, v.Serial = true, g.Device.GetSerial()
		}
		setData(d, v)
	}
	return s.Phase == claims.Attached && !was
}

// poolOf returns the resource pool of an allocated device.
func poolOf(claim *resourceapi.ResourceClaim, device string) string {
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == inventory.Driver && r.Device == device {
			return r.Pool
		}
	}
	return ""
}

// setData sets the data of a device, unless the API server has the same in other bytes.
func setData(d *resourceapi.AllocatedDeviceStatus, v devicedata.Data) {
	raw, err := json.Marshal(v)
	if err != nil {
		return // a struct of texts and numbers
	}
	if d.Data != nil {
		var old devicedata.Data
		if json.Unmarshal(d.Data.Raw, &old) == nil && old == v || bytes.Equal(raw, d.Data.Raw) {
			return
		}
	}
	d.Data = &runtime.RawExtension{Raw: raw}
}

// attachedBy returns what serves a device by its status, nothing for a device that is not
// attached or has failed.
func attachedBy(d resourceapi.AllocatedDeviceStatus) (v devicedata.Data) {
	if d.Driver != inventory.Driver || d.Data == nil || !isTrue(d, inventory.Attached) || isTrue(d, inventory.Failed) {
		return devicedata.Data{}
	}
	if json.Unmarshal(d.Data.Raw, &v) != nil {
		return devicedata.Data{} // not the driver's: the plugin refuses it
	}
	return v
}

// deviceStatus returns the status of a device, or of a share of one; nil if there is none.
func deviceStatus(claim *resourceapi.ResourceClaim, device, share string) *resourceapi.AllocatedDeviceStatus {
	for i := range claim.Status.Devices {
		if d := &claim.Status.Devices[i]; d.Driver == inventory.Driver && d.Device == device && shareOf(*d) == share {
			return d
		}
	}
	return nil
}

func shareOf(d resourceapi.AllocatedDeviceStatus) string {
	if d.ShareID == nil {
		return ""
	}
	return *d.ShareID
}

func isTrue(d resourceapi.AllocatedDeviceStatus, condition string) bool {
	return meta.IsStatusConditionTrue(d.Conditions, condition)
}

// truncate cuts a text to the length of the message of a condition.
func truncate(s string) string {
	const most = 4096
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

// isLater reports whether the manager asks to repeat the call later.
func isLater(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && ce.Meta().Get("Retry-After") != ""
}

// messageOf returns the manager's own words.
func messageOf(err error) string {
	if e := (*connect.Error)(nil); errors.As(err, &e) {
		return e.Message()
	}
	return err.Error()
}

func (c *Controller) sayAll(claim *resourceapi.ResourceClaim, news []claims.Status) {
	for _, s := range news {
		c.say(claim, s)
	}
}

// saying is what pods have been told of a device.
type saying struct {
	text string
	pods map[types.UID]bool
}

// say makes an event of each pod of the claim about a device that waits or has failed, once
// for each message.
func (c *Controller) say(claim *resourceapi.ResourceClaim, s claims.Status) {
	typ := corev1.EventTypeNormal
	switch {
	case s.Phase == claims.Failed:
		typ = corev1.EventTypeWarning
	case s.Reason != "Queued" && s.Reason != claims.AttachDelayed:
		return
	}
	s.Message = truncate(s.Message)
	for _, pod := range c.untold(claim, s) {
		c.recorder.Eventf(pod, typ, "GPU"+s.Reason, "GPU for claim %s, device %s: %s", claim.Name, s.Device, s.Message)
	}
}

// untold returns the pods of a claim that have not been told of the status of a device, and records
// that they are.
func (c *Controller) untold(claim *resourceapi.ResourceClaim, s claims.Status) (out []*corev1.ObjectReference) {
	pods := podsWith(claim)
	if len(pods) == 0 {
		return nil // the scheduler gives the claim back, and reserves it for the same pod again
	}
	uid, device, now := string(claim.UID), s.Device+"/"+s.Share, saying{s.Reason + ": " + s.Message, map[types.UID]bool{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.said[uid][device]
	for _, pod := range pods {
		now.pods[pod.UID] = true
		if old.text != now.text || !old.pods[pod.UID] {
			out = append(out, pod)
		}
	}
	if c.said[uid] == nil {
		c.said[uid] = map[string]saying{}
	}
	c.said[uid][device] = now
	return out
}

// podsWith returns the pods for which a claim is reserved, for events of them.
func podsWith(claim *resourceapi.ResourceClaim) (out []*corev1.ObjectReference) {
	for _, r := range claim.Status.ReservedFor {
		if r.Resource == "pods" && r.APIGroup == "" {
			out = append(out, &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: claim.Namespace, Name: r.Name, UID: r.UID})
		}
	}
	return out
}
