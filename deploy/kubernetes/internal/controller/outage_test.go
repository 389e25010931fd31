package controller

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// outage is a controller with a cluster and a manager that can be out of reach. Its time is that of
// a bubble.
type outage struct {
	*testing.T
	kube    *fake.Clientset
	manager *awayManager

	running    context.Context // of the controller
	stop, next func()          // ends the controller; waits for its end, and runs another one

	mu    sync.Mutex
	lines []string // of the log
}

// inOutage runs a test with a controller. prepare changes the manager before the controller starts.
func inOutage(t *testing.T, prepare func(*awayManager), test func(o *outage)) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset(
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "c"}},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", Labels: map[string]string{inventory.HostLabel: "h1"}}},
			sliceBefore(),
		)
		kube.PrependReactor("update", "resourceslices", completeSlice)
		kube.PrependReactor("create", "resourceslices", nameSlice)
		m, api := newAwayManager(t)
		m.set(prepare)
		o := &outage{T: t, kube: kube, manager: m}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(o)))))
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		run := func() {
			ctx := o.running
			err := Run(ctx, Config{
				Kube: kube, Pool: api, Managers: managerURL, Workers: 2, Metrics: NewMetrics(prometheus.NewRegistry()),
				Policy: claims.Policy{Tenant: func(string) string { return "lab" }, QueueTimeout: time.Minute},
			})
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
		o.running, o.stop = ctx, cancel
		o.next = func() {
			running.Wait()
			o.running, o.stop = context.WithCancel(context.WithoutCancel(ctx))
			running.Go(run)
			synctest.Wait()
		}
		defer func() { o.stop() }()
		running.Go(run)
		o.after(2 * time.Second)
		test(o)
	})
}

// Write takes a line of the log.
func (o *outage) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines, string(line))
	return len(line), nil
}

// logged returns the lines of the log since it was called before.
func (o *outage) logged() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := o.lines
	o.lines = nil
	return lines
}

// sliceBefore is a resource slice of an earlier controller.
func sliceBefore() *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "00000-" + inventory.Driver + "-1", ResourceVersion: "1"}}
	s.Spec.Driver, s.Spec.Devices = inventory.Driver, []resourceapi.Device{{Name: "b1-0"}}
	s.Spec.Pool = resourceapi.ResourcePool{Name: "dxpu/b1", Generation: 1, ResourceSliceCount: 1}
	return s
}

// completeSlice gives a resource slice the next version, as the API server does.
func completeSlice(a clienttesting.Action) (bool, runtime.Object, error) {
	s, is := a.(clienttesting.UpdateAction).GetObject().(*resourceapi.ResourceSlice)
	if !is { // client-go tries older versions of the API when the slice is gone
		return true, nil, apierrors.NewNotFound(a.GetResource().GroupResource(), "slice")
	}
	version, err := strconv.Atoi(s.ResourceVersion)
	if err != nil {
		return true, nil, err
	}
	s.ResourceVersion = strconv.Itoa(version + 1)
	return false, nil, nil
}

// nameSlice gives a new resource slice a name and its first version, as the API server does.
func nameSlice(a clienttesting.Action) (bool, runtime.Object, error) {
	s, is := a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
	if !is {
		return true, nil, apierrors.NewNotFound(a.GetResource().GroupResource(), "slice")
	}
	s.Name, s.ResourceVersion = s.GenerateName+rand.String(5), "1"
	return false, nil, nil
}

func always(*awayManager)    {}
func away(m *awayManager)    { m.away = true }
func back(m *awayManager)    { m.away = false }
func refuses(m *awayManager) { m.refuses = true }

// after lets time pass.
func (o *outage) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// allocate makes a claim for a GPU on the node w1, and reserves it for the pod p. The scheduler waits for
// its conditions before it binds the pod.
func (o *outage) allocate(name string) {
	o.Helper()
	o.allocateUntil(name, inventory.Attached)
}

// allocateUntil is allocate with other conditions, or with none.
func (o *outage) allocateUntil(name string, conditions ...string) {
	o.Helper()
	claim := allocatedLocal(name, "b1-0")
	claim.Status.Allocation.Devices.Results[0].BindingConditions = conditions
	claim.UID = types.UID("u-" + name)
	claim.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: time.Now()}
	claim.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"w1"}}},
	}}}
	api := o.kube.ResourceV1().ResourceClaims("lab")
	_, err := api.Create(o.Context(), claim, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = api.UpdateStatus(o.Context(), claim, metav1.UpdateOptions{})
	}
	if err != nil {
		o.Fatal(err)
	}
	synctest.Wait()
}

// deallocate takes the allocation from a claim, and the claim from its pod.
func (o *outage) deallocate(name string) {
	o.Helper()
	claim := o.claim(name)
	claim.Status = resourceapi.ResourceClaimStatus{}
	if _, err := o.kube.ResourceV1().ResourceClaims("lab").UpdateStatus(o.Context(), claim, metav1.UpdateOptions{}); err != nil {
		o.Fatal(err)
	}
}

func (o *outage) deleteClaim(name string) {
	o.Helper()
	if err := o.kube.ResourceV1().ResourceClaims("lab").Delete(o.Context(), name, metav1.DeleteOptions{}); err != nil {
		o.Fatal(err)
	}
}

func (o *outage) claim(name string) *resourceapi.ResourceClaim {
	o.Helper()
	claim, err := o.kube.ResourceV1().ResourceClaims("lab").Get(o.Context(), name, getOptions)
	if err != nil {
		o.Fatal(err)
	}
	return claim
}

// events returns the events with a reason: the kind of the object, and the message.
func (o *outage) events(reason string) (out []string) {
	o.Helper()
	all, err := o.kube.CoreV1().Events("lab").List(o.Context(), metav1.ListOptions{})
	if err != nil {
		o.Fatal(err)
	}
	for _, e := range all.Items {
		if e.Reason == reason {
			out = append(out, fmt.Sprintf("%d %s %s %s: %s", e.Count, e.Type, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message))
		}
	}
	slices.Sort(out)
	return out
}

// wantLeases fails unless the manager has a number of leases.
func (o *outage) wantLeases(want int, when string) {
	o.Helper()
	if n, _ := o.manager.counts(); n != want {
		o.Errorf("%s the manager has %d leases, want %d", when, n, want)
	}
}

// wantUnavailable fails unless the pod and the claim have one event each that says why they wait.
func (o *outage) wantUnavailable(words string) {
	o.Helper()
	got := o.events("GPUPoolUnavailable")
	if len(got) != 2 || !strings.HasPrefix(got[0], "1 Warning Pod p: ") || !strings.HasPrefix(got[1], "1 Warning ResourceClaim train: ") {
		o.Errorf("events %q; want one of the pod and one of the claim", got)
		return
	}
	for _, e := range got {
		for _, part := range []string{"claim train", managerURL, words, "goes on trying"} {
			if !strings.Contains(e, part) {
				o.Errorf("event %q lacks %q", e, part)
			}
		}
	}
}

// TestPoolUnavailable: a claim that is allocated while the manager is out of reach says so once, on
// the claim and its pod, however often it is tried. It is served within two seconds of the return.
func TestPoolUnavailable(t *testing.T) {
	inOutage(t, always, func(o *outage) {
		o.manager.set(away)
		o.after(time.Minute)
		o.allocate("train")
		o.after(5 * time.Minute)
		o.wantUnavailable("connection refused")
		o.manager.set(back)
		o.after(2 * time.Second)
		o.wantLeases(1, "two seconds after its return")
		o.wantUnavailable("connection refused")
	})
}

// TestPoolUnavailableAtStart: claims say why they wait also if the controller has never reached the
// manager.
func TestPoolUnavailableAtStart(t *testing.T) {
	inOutage(t, away, func(o *outage) {
		o.allocate("train")
		o.after(time.Minute)
		o.wantUnavailable("connection refused")
		o.manager.set(back)
		o.after(2 * time.Second)
		o.wantLeases(1, "two seconds after its return")
	})
}

// TestPoolRefuses: a manager that is there, and cannot decide, is unavailable, too. A claim that has
// been served says so again in the next outage.
func TestPoolRefuses(t *testing.T) {
	inOutage(t, refuses, func(o *outage) {
		o.allocate("train")
		o.after(time.Minute)
		o.wantUnavailable("the manager has no quorum")
		o.manager.set(func(m *awayManager) { m.refuses = false })
		o.after(retryMost)
		o.wantLeases(1, "after the next try")
		o.deallocate("train")
		o.after(time.Second)
		o.wantLeases(0, "without an allocation")
		o.manager.set(refuses)
		o.allocate("train")
		o.after(time.Minute)
		if got := o.events("GPUPoolUnavailable"); len(got) != 2 || !strings.HasPrefix(got[0], "2 ") || !strings.HasPrefix(got[1], "2 ") {
			o.Errorf("events %q; want each of them twice", got)
		}
	})
}

// TestReleasedAfterOutage: the lease of a claim that ends while the manager is out of reach is
// deleted within two seconds of the return.
func TestReleasedAfterOutage(t *testing.T) {
	for name, end := range map[string]func(*outage){
		"deleted":     func(o *outage) { o.deleteClaim("train") },
		"deallocated": func(o *outage) { o.deallocate("train") },
	} {
		t.Run(name, func(t *testing.T) {
			inOutage(t, always, func(o *outage) {
				o.allocate("train")
				o.wantLeases(1, "after the allocation")
				o.manager.set(away)
				o.after(time.Minute)
				end(o)
				o.after(5 * time.Minute)
				o.manager.set(back)
				o.after(2 * time.Second)
				o.wantLeases(0, "two seconds after its return")
				if got := o.events("GPUPoolUnavailable"); len(got) > 0 {
					o.Errorf("events of a claim that does not wait: %q", got)
				}
			})
		})
	}
}

// TestFlapping: a manager that comes and goes is not asked more often than it comes, but for the
// tries that a claim has anyway.
func TestFlapping(t *testing.T) {
	inOutage(t, refuses, func(o *outage) {
		o.allocate("train")
		o.after(time.Minute)
		_, before := o.manager.counts()
		const flaps = 60
		for range flaps {
			o.manager.set(away)
			o.after(time.Second)
			o.manager.set(back)
			o.after(time.Second)
		}
		_, after := o.manager.counts()
		if tries := after - before; tries < flaps/2 || tries > flaps+2*flaps/int(retryMost.Seconds())+8 {
			o.Errorf("%d tries in %d returns", tries, flaps)
		}
		o.wantUnavailable("the manager has no quorum")
	})
}

// TestHostsReturnLater: a manager that has been started again knows its hosts before these report.
// A claim waits for its host meanwhile, and is given back only if it stays away.
func TestHostsReturnLater(t *testing.T) {
	for _, returns := range []bool{true, false} {
		inOutage(t, always, func(o *outage) {
			o.manager.set(away)
			o.after(time.Minute)
			o.allocate("train")
			o.manager.set(func(m *awayManager) { m.away, m.silent = false, true })
			o.after(4 * time.Second)
			o.wantLeases(1, "before the host reports")
			o.manager.set(func(m *awayManager) { m.silent = !returns })
			o.after(time.Minute)
			want := 0
			if returns {
				want = 1
			}
			o.wantLeases(want, "a minute later")
			if got := o.events("GPUHostUnavailable"); (len(got) == 0) != returns {
				o.Errorf("the host returns: %v; events %q", returns, got)
			}
		})
	}
}

// TestRefusalEnds: a manager whose streams stay open while it cannot decide serves the claims that
// wait as soon as it has decided for one of them.
func TestRefusalEnds(t *testing.T) {
	inOutage(t, refuses, func(o *outage) {
		o.allocate("train")
		o.after(5 * time.Minute)
		o.manager.set(func(m *awayManager) { m.refuses = false })
		o.allocate("next")
		o.after(2 * time.Second)
		o.wantLeases(2, "two seconds after the first call that succeeds")
	})
}

// TestRefusesOne: a manager that fails for one claim, and serves others, is not asked for it each
// time that it serves another.
func TestRefusesOne(t *testing.T) {
	inOutage(t, func(m *awayManager) { m.rejects = "u-train" }, func(o *outage) {
		o.allocate("train")
		o.after(5 * time.Minute)
		_, before := o.manager.counts()
		const others = 60
		for i := range others {
			o.allocate(fmt.Sprintf("other-%d", i))
			o.after(time.Second)
		}
		o.wantLeases(others, "for the others")
		if _, after := o.manager.counts(); after-before-others > 3*9 {
			o.Errorf("%d tries in %d s", after-before-others, others)
		}
	})
}

// TestOutageLog: an outage has a line in the log when it begins, one each minute, and one when it
// ends. A change of the leader has none, and a manager that comes and goes not more than an outage.
func TestOutageLog(t *testing.T) {
	inOutage(t, always, func(o *outage) {
		o.logged()
		want := func(when string, least, most int) {
			o.Helper()
			got := o.logged()
			if len(got) < least || len(got) > most {
				o.Errorf("%s: %d lines, want %d to %d: %q", when, len(got), least, most, got)
			}
		}
		o.manager.set(away)
		o.manager.set(back)
		o.after(time.Minute)
		want("a change of the leader", 0, 0)
		o.manager.set(away)
		o.after(2 * time.Second)
		want("the manager is away", 1, 1)
		o.after(5 * time.Minute)
		want("for five minutes", 5, 5)
		o.manager.set(back)
		o.after(2 * time.Second)
		want("it is back", 1, 1)
		for range 60 {
			o.manager.set(away)
			o.after(3 * time.Second)
			o.manager.set(back)
			o.after(3 * time.Second)
		}
		want("it comes and goes for six minutes", 8, 2*7)
	})
}
