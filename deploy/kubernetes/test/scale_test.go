package test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// The size of TestScale. The issue of a large cluster is 1,000 claims, 200 nodes and 2,000
// GPUs, which needs some processors:
//
//	go test ./test -run TestScale -v -claims 1000 -nodes 200 -boxes 250
var scale struct{ claims, nodes, boxes, faults int }

func init() { //nolint:gochecknoinits // testing.M parses the flags
	flag.IntVar(&scale.claims, "claims", 40, "claims of TestScale")
	flag.IntVar(&scale.nodes, "nodes", 20, "nodes of TestScale, each with ten slots")
	flag.IntVar(&scale.boxes, "boxes", 25, "boxes of TestScale, each with eight GPUs")
	flag.IntVar(&scale.faults, "faults", 100, "faults of TestTorture")
}

const (
	gpusPerBox   = 8
	slotsPerNode = 10
)

// TestScale binds many claims at a time, and logs how long that takes beside claims of the
// same number of devices that have no binding conditions: those are the scheduler's own time.
func TestScale(t *testing.T) {
	n := scale.claims
	if n > scale.nodes*slotsPerNode || n > scale.boxes*gpusPerBox {
		t.Fatalf("%d claims do not fit on %d nodes of %d slots and %d boxes of %d GPUs", n, scale.nodes, slotsPerNode, scale.boxes, gpusPerBox)
	}
	e := newEnv(t, versions[0], kubetest.PoolSpec{Boxes: scale.boxes, GPUs: gpusPerBox, Hosts: scale.nodes, Slots: slotsPerNode, Simulate: true})
	e.controller.Stop()
	e.withdraw(inventory.Driver)
	plain := e.plainDevices(scale.boxes, gpusPerBox)
	alone := e.bindAll("plain", plain, n)
	e.deleteAll("plain")
	e.withdraw(plain)
	e.startController()
	e.waitDevices(scale.boxes * gpusPerBox)
	driver := e.bindAll("pool", class, n)
	e.deleteAll("pool")
	e.waitNoLease()
	t.Logf("%d claims on %d nodes and %d devices: the last pod runs after %v without conditions, after %v with those of the pool",
		n, scale.nodes, scale.boxes*gpusPerBox, alone.Round(100*time.Millisecond), driver.Round(100*time.Millisecond))
}

// plainDevices publishes devices of a driver without conditions, for all nodes, in as many
// slices as the pool has. It returns their class.
func (e *env) plainDevices(boxes, gpus int) (name string) {
	e.t.Helper()
	const driver = "plain.test"
	ctx, yes := e.t.Context(), true
	for b := range boxes {
		s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("plain-%d", b)}, Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, AllNodes: &yes, Pool: resourceapi.ResourcePool{Name: fmt.Sprintf("box-%d", b), Generation: 1, ResourceSliceCount: 1},
		}}
		for g := range gpus {
			s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("gpu-%d", g)})
		}
		if _, err := e.Kube.ResourceV1().ResourceSlices().Create(ctx, s, metav1.CreateOptions{}); err != nil {
			e.t.Fatal(err)
		}
	}
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "plain.test"`}}},
	}}
	if _, err := e.Kube.ResourceV1().DeviceClasses().Create(ctx, c, metav1.CreateOptions{}); err != nil {
		e.t.Fatal(err)
	}
	return driver
}

// withdraw deletes the devices of a driver. The scheduler reads the slices of all drivers for
// each pod and node, and evaluates the selectors of a claim for devices of another one.
func (e *env) withdraw(driver string) {
	e.t.Helper()
	of := metav1.ListOptions{FieldSelector: "spec.driver=" + driver}
	if err := e.Kube.ResourceV1().ResourceSlices().DeleteCollection(e.t.Context(), metav1.DeleteOptions{}, of); err != nil {
		e.t.Fatal(err)
	}
}

// bindAll creates pods with a claim each in a namespace, and returns the time until all run.
func (e *env) bindAll(namespace, class string, n int) time.Duration {
	e.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := e.Kube.CoreV1().Namespaces().Create(e.t.Context(), ns, metav1.CreateOptions{}); err != nil {
		e.t.Fatal(err)
	}
	spec := e.podSpec(podSpec{namespace: namespace, name: "one", class: class})
	defer e.account(namespace)()
	began := time.Now()
	var makers sync.WaitGroup
	work := make(chan int)
	for range 8 {
		makers.Go(func() {
			for i := range work {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i), Namespace: namespace}, Spec: spec}
				if _, err := e.Kube.CoreV1().Pods(namespace).Create(e.t.Context(), p, metav1.CreateOptions{}); err != nil {
					e.t.Error(err)
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	makers.Wait()
	e.t.Logf("%s: %d pods are created after %v", namespace, n, time.Since(began).Round(100*time.Millisecond))
	e.waitProgress("pods of "+namespace+" to run", func(ctx context.Context) (left int, err error) {
		l, err := e.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "status.phase!=Running", ResourceVersion: "0"})
		if err != nil {
			return n, err
		}
		return len(l.Items), nil
	})
	took := time.Since(began)
	e.logEvents(namespace)
	e.logSteps(namespace)
	return took
}

// logSteps logs how long the steps of the pods of a namespace took, by the times of the API, which
// are whole seconds: the scheduler allocates, the controller attaches, the scheduler binds.
func (e *env) logSteps(namespace string) {
	e.t.Helper()
	pods, err := e.Kube.CoreV1().Pods(namespace).List(e.t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		e.t.Fatal(err)
	}
	list, err := e.Kube.ResourceV1().ResourceClaims(namespace).List(e.t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		e.t.Fatal(err)
	}
	byPod := map[types.UID]*resourceapi.ResourceClaim{}
	for i := range list.Items {
		for _, user := range list.Items[i].Status.ReservedFor {
			byPod[user.UID] = &list.Items[i]
		}
	}
	steps := map[string][]time.Duration{}
	step := func(name string, from, to time.Time) time.Time {
		steps[name] = append(steps[name], to.Sub(from))
		return to
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		c := byPod[p.UID]
		if c == nil || c.Status.Allocation == nil || c.Status.Allocation.AllocationTimestamp == nil {
			continue
		}
		at := step("allocated", p.CreationTimestamp.Time, c.Status.Allocation.AllocationTimestamp.Time)
		for _, d := range c.Status.Devices {
			if is := meta.FindStatusCondition(d.Conditions, inventory.Attached); is != nil {
				at = step("attached", at, is.LastTransitionTime.Time)
			}
		}
		if p.Status.StartTime != nil {
			step("bound", at, p.Status.StartTime.Time) // the nodes of this test run a pod at once
		}
	}
	for _, name := range slices.Sorted(maps.Keys(steps)) {
		of := steps[name]
		slices.Sort(of)
		e.t.Logf("%s: %s after the step before: median %v, 90th percentile %v, longest %v", namespace, name, of[len(of)/2], of[len(of)*9/10], of[len(of)-1])
	}
}

// logEvents logs how often each reason was given to the pods of a namespace.
func (e *env) logEvents(namespace string) {
	e.t.Helper()
	all, err := e.Kube.CoreV1().Events(namespace).List(e.t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		e.t.Fatal(err)
	}
	reasons := map[string]int{}
	for i := range all.Items {
		reasons[all.Items[i].Reason] += int(max(all.Items[i].Count, 1))
	}
	e.t.Logf("%s: events: %v", namespace, reasons)
}

// account returns a function that logs what the processes have used since, and what they have
// written. Times depend on what else the machine does, and this does not.
func (e *env) account(what string) func() {
	e.t.Helper()
	read := func() (kubetest.Usage, map[string]int) {
		e.t.Helper()
		used, err := e.Usage(append(e.pool.Processes(), e.controller)...)
		if err != nil {
			e.t.Fatal(err)
		}
		writes, err := e.Writes(e.t.Context())
		if err != nil {
			e.t.Fatal(err)
		}
		return used, writes
	}
	used, writes := read()
	return func() {
		now, written := read()
		var list []string
		for name, n := range written {
			if n -= writes[name]; n > 0 {
				list = append(list, fmt.Sprintf("%d %s", n, name))
			}
		}
		slices.Sort(list)
		e.t.Logf("%s: processor time: %s", what, now.Since(used))
		e.t.Logf("%s: requests: %s", what, strings.Join(list, ", "))
	}
}

func (e *env) deleteAll(namespace string) {
	e.t.Helper()
	// The API server ends a call after a minute, in which a busy machine deletes some of them.
	e.wait("the pods of "+namespace+" to be deleted", func(ctx context.Context) (bool, error) {
		err := e.Kube.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		return err == nil, err
	})
	e.waitProgress("claims of "+namespace+" to go", func(ctx context.Context) (int, error) {
		l, err := e.Kube.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return 1, err
		}
		return len(l.Items), nil
	})
}

// waitProgress waits until nothing is left, for as long as something goes.
func (e *env) waitProgress(what string, left func(context.Context) (int, error)) {
	e.t.Helper()
	least, since := -1, time.Now()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		n, err := left(e.t.Context())
		switch {
		case err == nil && n == 0:
			return
		case err == nil && (least < 0 || n < least):
			least, since = n, time.Now()
		case time.Since(since) > patience:
			e.t.Fatalf("waited for %s: %d are left for %v, %v; the controller says:\n%s", what, n, patience, err, e.controller.Tail(10))
		}
		select {
		case <-e.t.Context().Done():
			e.t.Fatal(e.t.Context().Err())
		case <-tick.C:
		}
	}
}
