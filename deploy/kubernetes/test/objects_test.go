package test

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

const class = "gpu.dxpu.dev"

// podSpec says what a pod of a test asks for.
type podSpec struct {
	namespace, name string
	gpus            int64
	class           string // of the device; empty: that of the pool
	selector        string // CEL
	node            string // only there
	capacity        string // of each GPU, such as "memory=16Gi,compute=30"; empty: all
	parameters      string // fields of the lease's parameters, in JSON
	tolerations     []resourceapi.DeviceToleration
	requests        int    // that are alike, each for its GPUs; 0: one
	distinct        bool   // the GPUs of the requests differ
	admin           bool   // access for monitoring, beside the user of a GPU
	extended        int64  // GPUs as an extended resource instead of a claim
	command         string // of a shell in the image of programs, for a real kubelet
	once            bool   // the pod ends with its program
	hostNetwork     bool
}

// createPod creates a pod with a claim of its own.
func (e *env) createPod(s podSpec) {
	e.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: s.in()}, Spec: e.podSpec(s)}
	if _, err := e.Kube.CoreV1().Pods(s.in()).Create(e.t.Context(), p, metav1.CreateOptions{}); err != nil {
		e.t.Fatal(err)
	}
}

func (s podSpec) in() string { return cmp.Or(s.namespace, "default") }

// podSpec returns the specification of a pod, whose template of claims it creates.
func (e *env) podSpec(s podSpec) corev1.PodSpec {
	e.t.Helper()
	no, now := false, int64(1)
	c := corev1.Container{Name: "c", Image: "none"}
	p := corev1.PodSpec{AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: &now, HostNetwork: s.hostNetwork}
	if s.command != "" {
		c.Image, c.ImagePullPolicy, c.Command = kubetest.Image, corev1.PullNever, []string{"/bin/sh", "-c", s.command}
	}
	if s.once {
		p.RestartPolicy = corev1.RestartPolicyNever
	}
	if s.node != "" {
		p.NodeSelector = map[string]string{corev1.LabelHostname: s.node}
	}
	if s.extended > 0 {
		c.Resources.Limits = corev1.ResourceList{"dxpu.dev/gpu": *quantity(s.extended)}
	} else {
		template := e.template(s)
		p.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
		c.Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	}
	p.Containers = []corev1.Container{c}
	return p
}

// template creates a template of claims for a pod, and returns its name.
func (e *env) template(s podSpec) string {
	e.t.Helper()
	e.must(e.createTemplate(s))
	return s.name
}

func (e *env) createTemplate(s podSpec) error {
	r := resourceapi.ExactDeviceRequest{DeviceClassName: cmp.Or(s.class, class), Count: max(s.gpus, 1), Tolerations: s.tolerations}
	if s.admin {
		r.AdminAccess = &s.admin
	}
	if s.selector != "" {
		r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: s.selector}}}
	}
	if s.capacity != "" {
		r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		for one := range strings.SplitSeq(s.capacity, ",") {
			name, value, _ := strings.Cut(one, "=")
			r.Capacity.Requests[resourceapi.QualifiedName(name)] = resource.MustParse(value)
		}
	}
	t := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: s.in()}}
	d := &t.Spec.Spec.Devices
	d.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &r}}
	for i := 1; i < s.requests; i++ {
		d.Requests = append(d.Requests, resourceapi.DeviceRequest{Name: fmt.Sprintf("gpu%d", i), Exactly: &r})
	}
	if s.distinct {
		name := resourceapi.FullyQualifiedName(class + "/gpu")
		d.Constraints = []resourceapi.DeviceConstraint{{DistinctAttribute: &name}}
	}
	if s.parameters != "" {
		d.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: parameters(s.parameters)}}
	}
	_, err := e.Kube.ResourceV1().ResourceClaimTemplates(s.in()).Create(e.t.Context(), t, metav1.CreateOptions{})
	return err
}

// parameters returns the configuration of leases with some fields.
func parameters(fields string) resourceapi.DeviceConfiguration {
	raw := fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,%s}`, claims.ParametersVersion, claims.ParametersKind, fields)
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: class, Parameters: runtime.RawExtension{Raw: raw}}}
}

func (e *env) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	return e.Kube.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
}

// waitRunning waits until a pod runs and returns it.
func (e *env) waitRunning(name string) (pod *corev1.Pod) {
	e.t.Helper()
	e.wait("pod "+name+" to run", func(ctx context.Context) (ok bool, err error) {
		pod, err = e.pod(ctx, name)
		return err == nil && pod.Status.Phase == corev1.PodRunning, err
	})
	return pod
}

func (e *env) deletePod(name string) {
	e.t.Helper()
	if err := e.Kube.CoreV1().Pods("default").Delete(e.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		e.t.Fatal(err)
	}
}

// claimOf returns the claim of a pod.
func (e *env) claimOf(ctx context.Context, pod *corev1.Pod) (*resourceapi.ResourceClaim, error) {
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			return e.Kube.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, *s.ResourceClaimName, metav1.GetOptions{})
		}
	}
	return nil, fmt.Errorf("pod %s has no claim yet", pod.Name)
}

func (e *env) slices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	l, err := e.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

func (e *env) countDevices(ctx context.Context) (n int, err error) {
	all, err := e.slices(ctx)
	for _, s := range all {
		n += len(s.Spec.Devices)
	}
	return n, err
}

// device returns a published device.
func (e *env) device(ctx context.Context, name string) (*resourceapi.Device, error) {
	all, err := e.slices(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		for i := range s.Spec.Devices {
			if s.Spec.Devices[i].Name == name {
				return &s.Spec.Devices[i], nil
			}
		}
	}
	return nil, fmt.Errorf("device %s is not published", name)
}

// leases returns the leases of the pool that have not ended.
func (e *env) leases(ctx context.Context) ([]*dxpuv1.Lease, error) {
	var out []*dxpuv1.Lease
	for req := (&dxpuv1.ListLeasesRequest{PageSize: 1000}); ; {
		res, err := e.pool.API.Pool.ListLeases(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, err
		}
		out = append(out, res.Msg.Leases...)
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			return out, nil
		}
	}
}

// waitNoLease waits until the pool has no lease and no bound GPU.
func (e *env) waitNoLease() {
	e.t.Helper()
	e.wait("the pool to be empty", func(ctx context.Context) (bool, error) {
		res, err := e.pool.API.Pool.GetPool(ctx, connect.NewRequest(&dxpuv1.GetPoolRequest{}))
		if err != nil {
			return false, err
		}
		all, err := e.leases(ctx)
		if len(all) > 0 {
			err = fmt.Errorf("%d leases, one is %s of %v: %s", len(all), all[0].Id, all[0].Spec.Labels, all[0].StateReason)
		}
		return err == nil && len(all) == 0 && res.Msg.Pool.GpusBound == 0, err
	})
}
