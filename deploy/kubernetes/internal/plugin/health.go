package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

const (
	// healthEvery is the time between two looks at the claims of the node's pods: with ten
	// claims on each of 1,000 nodes the API server has 500 requests a second.
	healthEvery = 20 * time.Second
	// healthValid is the time after which the kubelet calls a device's health unknown.
	healthValid = 3 * healthEvery
)

// NodeWatchResources implements drahealth.DRAResourceHealthServer: the kubelet puts the health of
// devices into the status of the pods that have them. It is what the controller has left in the
// status of their claims.
func (p *Plugin) NodeWatchResources(_ *drahealth.NodeWatchResourcesRequest, stream grpc.ServerStreamingServer[drahealth.NodeWatchResourcesResponse]) error {
	ctx := stream.Context()
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	for {
		prepared := p.prepared.wait()
		devices, err := p.health(ctx)
		if err != nil {
			klog.FromContext(ctx).Error(err, "The health of some devices is not known now")
		}
		if err := stream.Send(&drahealth.NodeWatchResourcesResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-prepared:
		case <-tick.C:
		}
	}
}

// health returns the health of the devices of all claims that are prepared and can be read. The kubelet
// calls that of the others unknown after healthValid. A claim that cannot be read may have a share of any
// device that is shared: nothing but the worst is said of these.
func (p *Plugin) health(ctx context.Context) ([]*drahealth.DeviceHealth, error) {
	owners, err := p.CDI.Owners()
	errs := []error{err}
	type id struct{ pool, device string }
	worst, shared, unread := map[id]*drahealth.DeviceHealth{}, map[id]bool{}, false
	for _, o := range owners {
		claim, err := p.Claim(ctx, o.Namespace, o.Name)
		switch {
		case apierrors.IsNotFound(err) || err == nil && (string(claim.UID) != o.UID || claim.Status.Allocation == nil):
			continue // its pod has ended
		case err != nil:
			errs, unread = append(errs, fmt.Errorf("read claim %s/%s: %w", o.Namespace, o.Name, err)), true
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.Driver != inventory.Driver || r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			h := healthOf(claim, &r)
			// Two pods may have shares of one device, which is one for the kubelet.
			at := id{r.Pool, r.Device}
			shared[at] = shared[at] || r.ShareID != nil
			if old := worst[at]; old == nil || severity[h.Health] > severity[old.Health] {
				worst[at] = h
			}
		}
	}
	out := make([]*drahealth.DeviceHealth, 0, len(worst))
	for at, h := range worst {
		if unread && shared[at] && h.Health != drahealth.HealthStatus_UNHEALTHY {
			continue
		}
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b *drahealth.DeviceHealth) int {
		return cmp.Or(cmp.Compare(a.Device.PoolName, b.Device.PoolName), cmp.Compare(a.Device.DeviceName, b.Device.DeviceName))
	})
	return out, errors.Join(errs...)
}

var severity = map[drahealth.HealthStatus]int{
	drahealth.HealthStatus_HEALTHY: 0, drahealth.HealthStatus_UNKNOWN: 1, drahealth.HealthStatus_UNHEALTHY: 2,
}

// healthOf returns the health of an allocated device by the status of its claim.
func healthOf(claim *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) *drahealth.DeviceHealth {
	h := &drahealth.DeviceHealth{
		Device:                    &drahealth.DeviceIdentifier{PoolName: r.Pool, DeviceName: r.Device},
		Health:                    drahealth.HealthStatus_HEALTHY,
		LastUpdatedTime:           time.Now().Unix(),
		HealthCheckTimeoutSeconds: int64(healthValid / time.Second),
	}
	s := statusOf(claim, r)
	if s == nil {
		h.Health, h.Message = drahealth.HealthStatus_UNKNOWN, "the claim has no status of the device"
		return h
	}
	if c := meta.FindStatusCondition(s.Conditions, inventory.Failed); c != nil && c.Status == metav1.ConditionTrue {
		h.Health, h.Message = drahealth.HealthStatus_UNHEALTHY, "the GPU is lost: "+c.Message
		return h
	}
	if c := meta.FindStatusCondition(s.Conditions, inventory.Healthy); c != nil && c.Status != metav1.ConditionTrue {
		h.Health, h.Message = drahealth.HealthStatus_UNHEALTHY, c.Reason
		if c.Status == metav1.ConditionUnknown {
			h.Health = drahealth.HealthStatus_UNKNOWN
		}
		if c.Message != "" {
			h.Message += ": " + c.Message
		}
	}
	return h
}

// signal tells all that wait. Its zero value is ready.
type signal struct {
	mu sync.Mutex
	ch chan struct{}
}

// wait returns a channel that the next send closes.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

func (s *signal) send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}
