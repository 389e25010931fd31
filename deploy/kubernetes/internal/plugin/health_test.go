package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/cdi"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// healthStream is the kubelet's end of a stream.
type healthStream struct {
	grpc.ServerStream
	ctx  context.Context
	sent chan string
}

func (s *healthStream) Context() context.Context { return s.ctx }

func (s *healthStream) Send(m *drahealth.NodeWatchResourcesResponse) error {
	var out []string
	for _, d := range m.Devices {
		out = append(out, fmt.Sprintf("%s/%s %v %s", d.Device.PoolName, d.Device.DeviceName, d.Health, d.Message))
	}
	s.sent <- strings.Join(out, ", ")
	return nil
}

// TestNodeWatchResources: the kubelet learns of the devices of a claim as soon as it is prepared.
func TestNodeWatchResources(t *testing.T) {
	p, _ := socketPlugin(t)
	c := claim(condition(inventory.Attached, "True"))
	p.Claim = func(context.Context, string, string) (*resourceapi.ResourceClaim, error) { return c, nil }
	ctx, stop := context.WithCancel(t.Context())
	s, ended := &healthStream{ctx: ctx, sent: make(chan string)}, make(chan error)
	go func() { ended <- p.NodeWatchResources(nil, s) }()
	if got := <-s.sent; got != "" {
		t.Errorf("before: %s", got)
	}
	if r := prepare(t, p, c); r.Err != nil {
		t.Fatal(r.Err)
	}
	if got, want := <-s.sent, "dxpu/b1/b1-0 HEALTHY , dxpu/b1/b1-1 HEALTHY "; got != want {
		t.Errorf("%q; want %q", got, want)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestHealth: the kubelet gets a health for each kind of conditions of a device.
func TestHealth(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "resourceclaims"}, "c")
	with := func(name, reason, message string, is metav1.ConditionStatus) []metav1.Condition {
		return []metav1.Condition{condition(inventory.Attached, "True"), {Type: name, Status: is, Reason: reason, Message: message}}
	}
	for name, tc := range map[string]struct {
		conditions []metav1.Condition
		change     func(*resourceapi.ResourceClaim)
		err        error
		want       string
	}{
		"healthy":          {conditions: with("Other", "R", "", "True"), want: "HEALTHY "},
		"healthy again":    {conditions: with(inventory.Healthy, "OK", "", "True"), want: "HEALTHY "},
		"degraded":         {conditions: with(inventory.Healthy, "Degraded", "12 corrected errors", "False"), want: "UNHEALTHY Degraded: 12 corrected errors"},
		"without a detail": {conditions: with(inventory.Healthy, "Failed", "", "False"), want: "UNHEALTHY Failed"},
		"unreachable":      {conditions: with(inventory.Healthy, "Unreachable", "the box does not report", "Unknown"), want: "UNKNOWN Unreachable: the box does not report"},
		"lost":             {conditions: with(inventory.Failed, "LeaseLost", "the lease has ended", "True"), want: "UNHEALTHY the GPU is lost: the lease has ended"},
		"no status":        {change: func(c *resourceapi.ResourceClaim) { c.Status.Devices = nil }, want: "UNKNOWN the claim has no status of the device"},
		"monitoring": {change: func(c *resourceapi.ResourceClaim) {
			yes := true
			c.Status.Allocation.Devices.Results[0].AdminAccess = &yes
		}, want: ""},
		"another claim of that name": {change: func(c *resourceapi.ResourceClaim) { c.UID = "u2" }, want: ""},
		"not allocated any more":     {change: func(c *resourceapi.ResourceClaim) { c.Status.Allocation = nil }, want: ""},
		"gone":                       {err: gone, want: ""},
		"out of reach":               {err: errors.New("no route"), want: "error"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := socketPlugin(t)
			if err := p.CDI.Write(cdi.Owner{Namespace: "lab", Name: "c", UID: "u1"}, nil); err != nil {
				t.Fatal(err)
			}
			c := claim(tc.conditions...)
			c.Status.Allocation.Devices.Results = c.Status.Allocation.Devices.Results[:1]
			if tc.change != nil {
				tc.change(c)
			}
			p.Claim = func(_ context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
				if namespace != "lab" || name != "c" {
					t.Errorf("asked for %s/%s", namespace, name)
				}
				return c, tc.err
			}
			list, err := p.health(t.Context())
			got := ""
			switch {
			case err != nil:
				got = "error"
			case len(list) > 0:
				got = fmt.Sprintf("%v %s", list[0].Health, list[0].Message)
			}
			if got != tc.want || len(list) > 1 {
				t.Errorf("%q of %d; want %q", got, len(list), tc.want)
			}
		})
	}
}

// TestHealthOfShares: two pods of the node have shares of one device, which is one for the kubelet. It
// hears nothing good of the device while the claim of a share cannot be read.
func TestHealthOfShares(t *testing.T) {
	p, _ := socketPlugin(t)
	byName := map[string]*resourceapi.ResourceClaim{}
	for i, is := range []metav1.ConditionStatus{"True", "False", "True"} {
		share := types.UID(fmt.Sprint("s", i))
		c := claim(condition(inventory.Attached, "True"), metav1.Condition{Type: inventory.Healthy, Status: is, Reason: "Degraded"})
		c.UID, c.Name = types.UID(fmt.Sprint("u", i)), fmt.Sprint("c", i)
		c.Status.Allocation.Devices.Results = c.Status.Allocation.Devices.Results[:1]
		c.Status.Allocation.Devices.Results[0].ShareID = &share
		id := string(share)
		c.Status.Devices[0].ShareID = &id
		byName[c.Name] = c
		if err := p.CDI.Write(cdi.Owner{Namespace: c.Namespace, Name: c.Name, UID: string(c.UID)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		unread string // the claim that cannot be read
		want   []drahealth.HealthStatus
	}{
		{"", []drahealth.HealthStatus{drahealth.HealthStatus_UNHEALTHY}},
		{"c0", []drahealth.HealthStatus{drahealth.HealthStatus_UNHEALTHY}},
		{"c1", nil}, // the unhealthy one
	} {
		p.Claim = func(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
			if name == tc.unread {
				return nil, errors.New("no route")
			}
			return byName[name], nil
		}
		list, err := p.health(t.Context())
		var got []drahealth.HealthStatus
		for _, h := range list {
			got = append(got, h.Health)
		}
		if !slices.Equal(got, tc.want) || (err != nil) != (tc.unread != "") {
			t.Errorf("without %q: %v, %v; want %v", tc.unread, got, err, tc.want)
		}
	}
}

// TestHealthUnreadable: the kubelet hears of the claims that can be read, beside one that cannot.
func TestHealthUnreadable(t *testing.T) {
	p, _ := socketPlugin(t)
	for _, name := range []string{"c0", "c1", "c2"} {
		if err := p.CDI.Write(cdi.Owner{Namespace: "lab", Name: name, UID: "u-" + name}, nil); err != nil {
			t.Fatal(err)
		}
	}
	p.Claim = func(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
		if name == "c1" {
			return nil, errors.New("no route")
		}
		c := claim(condition(inventory.Attached, "True"))
		c.UID = types.UID("u-" + name)
		for i := range c.Status.Devices {
			c.Status.Allocation.Devices.Results[i].Device, c.Status.Devices[i].Device = name, name
		}
		return c, nil
	}
	ctx, stop := context.WithCancel(t.Context())
	s, ended := &healthStream{ctx: ctx, sent: make(chan string)}, make(chan error)
	go func() { ended <- p.NodeWatchResources(nil, s) }()
	select {
	case got := <-s.sent:
		if want := "dxpu/b1/c0 HEALTHY , dxpu/b1/c2 HEALTHY "; got != want {
			t.Errorf("%q; want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing is sent")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
