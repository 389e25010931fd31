// Package controller joins a Kubernetes cluster with a DxPU pool: it publishes the pool's
// GPUs as devices, and leases those that the scheduler allocates.
package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/performance"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/pool"
)

// Config says what the controller joins.
type Config struct {
	Kube kubernetes.Interface
	Pool dxpuv1connect.PoolServiceClient
	// Managers are the URLs of the pool's managers, as events name them.
	Managers string
	// Policy is that of the leases. Its cluster is filled in by Run.
	Policy claims.Policy
	// Workers is the number of claims that are handled at a time.
	Workers int
	// WholeGPUs offers no parts of GPUs.
	WholeGPUs bool
	// Performance has the predictions for workloads.
	Performance performance.Table
	Metrics     *Metrics
}

// Controller is a running controller.
type Controller struct {
	cfg      Config
	watch    *pool.Watcher
	claims   cache.SharedIndexInformer
	nodes    cache.SharedIndexInformer
	queue    workqueue.TypedRateLimitingInterface[string] // UIDs of claims
	devices  *resourceslice.Controller
	recorder record.EventRecorder

	publish chan struct{} // asks for an update of the devices

	mu        sync.Mutex
	inventory *inventory.Inventory
	said      map[string]map[string]saying     // claim -> device and share -> the last message of an event
	told      map[types.UID]map[types.UID]bool // claim -> objects with an event that no manager serves it

	reached  time.Time // when the manager last came, or came back
	refusing bool      // the manager has failed to create or delete a lease, which mu guards
	resumed  time.Time // when it last did again after that, which mu guards
}

// claimUID is the index of claims by UID.
const claimUID = "uid"

// nodeHost is the index of nodes by the host of the pool that they name.
const nodeHost = "host"

var byHost = cache.Indexers{nodeHost: func(obj any) ([]string, error) {
	if id := obj.(*corev1.Node).Labels[inventory.HostLabel]; id != "" {
		return []string{id}, nil
	}
	return nil, nil
}}

// Run runs the controller until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	c, err := start(ctx, cfg)
	if err != nil {
		return err
	}
	return c.run(ctx)
}

func start(ctx context.Context, cfg Config) (*Controller, error) {
	cluster, err := clusterID(ctx, cfg.Kube)
	if err != nil {
		return nil, err
	}
	cfg.Policy.Cluster = cluster
	factory := informers.NewSharedInformerFactory(cfg.Kube, 0)
	c := &Controller{
		cfg:    cfg,
		claims: factory.Resource().V1().ResourceClaims().Informer(),
		nodes:  factory.Core().V1().Nodes().Informer(),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, retryMost),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "claims"}),
		publish:   make(chan struct{}, 1),
		inventory: &inventory.Inventory{},
		said:      map[string]map[string]saying{},
		told:      map[types.UID]map[types.UID]bool{},
	}
	c.watch = pool.New(cfg.Pool, cluster, func(claim string) { c.queue.Add(claim) }, c.askPublish)
	if err := c.claims.AddIndexers(cache.Indexers{claimUID: func(obj any) ([]string, error) {
		return []string{string(obj.(*resourceapi.ResourceClaim).UID)}, nil
	}}); err != nil {
		return nil, err
	}
	if err := c.nodes.SetTransform(onlyLabels); err != nil {
		return nil, err
	}
	if err := c.nodes.AddIndexers(byHost); err != nil {
		return nil, err
	}
	if _, err := c.claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { c.claimChanged(obj) },
		UpdateFunc: func(old, obj any) {
			c.claimChanged(obj)
			if isAllocated(old) != isAllocated(obj) || !slices.Equal(lostIn(old), lostIn(obj)) {
				c.askPublish()
			}
		},
		DeleteFunc: func(obj any) { c.claimChanged(obj) },
	}); err != nil {
		return nil, err
	}
	if _, err := c.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { c.askPublish() },
		UpdateFunc: func(old, obj any) {
			if hostNamed(old) != hostNamed(obj) {
				c.askPublish()
				c.queueClaimsOn(obj.(*corev1.Node).Name)
			}
		},
		DeleteFunc: func(any) { c.askPublish() },
	}); err != nil {
		return nil, err
	}
	return c, nil
}

// Retries of a claim after an error: of the manager or of the API server.
const (
	retryFirst = 200 * time.Millisecond
	retryMost  = 30 * time.Second
)

// clusterID returns the identity of a cluster: there is no other that all of them have.
func clusterID(ctx context.Context, kube kubernetes.Interface) (string, error) {
	ns, err := kube.CoreV1().Namespaces().Get(ctx, "kube-system", getOptions)
	if err != nil {
		return "", fmt.Errorf("read the identity of the cluster, the namespace kube-system: %w", err)
	}
	return string(ns.UID), nil
}

// onlyLabels drops everything of a node but its name and labels: the informer keeps all nodes.
func onlyLabels(obj any) (any, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	small := &corev1.Node{}
	small.Name, small.UID, small.ResourceVersion, small.Labels = n.Name, n.UID, n.ResourceVersion, n.Labels
	return small, nil
}

func (c *Controller) claimChanged(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if claim, ok := obj.(*resourceapi.ResourceClaim); ok {
		c.queue.Add(string(claim.UID))
	}
}

// queueClaimsOn looks at the claims again that are allocated for a node: those whose leases wait
// for its host, which is another one now.
func (c *Controller) queueClaimsOn(node string) {
	for _, obj := range c.claims.GetStore().List() {
		claim := obj.(*resourceapi.ResourceClaim)
		if a := claim.Status.Allocation; a != nil && allocatedNode(a.NodeSelector) == node {
			c.claimChanged(claim)
		}
	}
}

func (c *Controller) askPublish() {
	select {
	case c.publish <- struct{}{}:
	default:
	}
}

func (c *Controller) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	defer c.queue.ShutDown()

	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.cfg.Kube.CoreV1().Events("")})
	c.recorder = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "dxpu-dra"})

	lines := &outageLog{log: klog.FromContext(ctx)}
	tasks.Go(func() { c.claims.RunWithContext(ctx) })
	tasks.Go(func() { c.nodes.RunWithContext(ctx) })
	tasks.Go(func() {
		c.watch.Run(ctx, func(err error) {
			c.cfg.Metrics.poolErrors.Inc()
			lines.failed(err)
			c.poolAway(err)
		}, c.poolReached, lines.ended)
	})
	if !cache.WaitForCacheSync(ctx.Done(), c.claims.HasSynced, c.nodes.HasSynced) {
		return context.Cause(ctx)
	}
	select {
	case <-c.watch.Synced():
	case <-ctx.Done():
		return nil
	}
	c.renew(false)
	// Leases of claims that ended while no controller ran.
	_, orphans := c.watch.Ours()
	for _, uid := range orphans {
		c.queue.Add(uid)
	}
	for range c.cfg.Workers {
		tasks.Go(func() { c.work(ctx) })
	}
	return c.keepPublished(ctx)
}

func (c *Controller) work(ctx context.Context) {
	for {
		uid, stop := c.queue.Get()
		if stop {
			return
		}
		c.cfg.Metrics.reconciles.Inc()
		err := c.reconcile(ctx, uid)
		switch {
		case err == nil:
			c.queue.Forget(uid)
			c.served(uid)
		case ctx.Err() == nil:
			c.cfg.Metrics.errors.Inc()
			klog.FromContext(ctx).V(2).Info("A claim is tried again", "claim", uid, "err", err)
			c.sayUnavailable(c.claimByUID(uid), err)
			c.queue.AddRateLimited(uid)
		}
		c.queue.Done(uid)
	}
}

// startSlices begins to publish the devices. The inventory then is that which has been published.
func (c *Controller) startSlices(ctx context.Context) (err error) {
	c.renew(false)
	delay := sliceDelay
	c.devices, err = resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: inventory.Driver, KubeClient: c.cfg.Kube, Resources: c.current().Resources(), SyncDelay: &delay,
		Queue: patientQueue{workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())},
		ErrorHandler: func(ctx context.Context, err error, msg string) {
			var dropped *resourceslice.DroppedFieldsError
			if errors.As(err, &dropped) {
				err = fmt.Errorf("%w: enable the feature gates DRADeviceBindingConditions, DRADeviceTaints and DRAConsumableCapacity in the API server and the scheduler; without the first a pod waits on its node for its GPU, without the last start the controller with --whole-gpus", err)
			}
			klog.FromContext(ctx).Error(err, msg)
		},
	})
	return err
}

// patientQueue is the publisher's queue of pools. A pool that waits for no time waits for a moment: the
// publisher looks at a new slice again when a minute is over, and until the clock has gone past that, for
// ever in a test whose clock stands.
type patientQueue struct {
	workqueue.TypedRateLimitingInterface[string]
}

func (q patientQueue) AddAfter(pool string, d time.Duration) {
	q.TypedRateLimitingInterface.AddAfter(pool, max(d, time.Millisecond))
}

// sliceDelay is the time after which foreign changes of the devices are undone.
const sliceDelay = 10 * time.Second

// slicesAgain is the time after which all slices are compared with the devices again. The publisher
// believes for a minute ([resourceslice.DefaultMutationCacheTTL]) that a slice which it wrote is there,
// also when a user has deleted it meanwhile, and looks no more.
const slicesAgain = time.Minute

const (
	// publishPause and publishShare bound the work of publishing: a burst of changes of
	// claims and GPUs causes one update, and updates take a fifth of the time at most.
	publishPause = 200 * time.Millisecond
	publishShare = 5
	// selectorPause is the time between two changes of the node selector, which is in all
	// slices: the API server writes each of them, and the scheduler reads it.
	selectorPause = 5 * time.Second
)

// keepPublished publishes the devices, and again after each change, until ctx ends. The slices of an
// earlier controller stay as they are until the pool is known.
func (c *Controller) keepPublished(ctx context.Context) error {
	for !c.watch.Complete() {
		select {
		case <-ctx.Done():
			return nil
		case <-c.publish:
		}
		began := time.Now()
		c.renew(false)
		pauseAfter(ctx, began)
	}
	if err := c.startSlices(ctx); err != nil {
		return err
	}
	defer c.devices.Stop()
	var selected time.Time
	timer, again := time.NewTimer(0), time.NewTicker(slicesAgain)
	defer timer.Stop()
	defer again.Stop()
	for {
		compare := false
		select {
		case <-ctx.Done():
			return nil
		case <-c.publish:
		case <-timer.C:
		case <-again.C:
			compare = true
		}
		began := time.Now()
		wait := selectorPause - began.Sub(selected)
		changed, selects, held := c.renew(wait > 0)
		if changed || compare {
			c.devices.Update(c.current().Resources())
		}
		if selects {
			selected = began
		}
		if held {
			timer.Reset(wait)
		}
		pauseAfter(ctx, began)
	}
}

// pauseAfter waits between two updates of the devices, or until ctx ends.
func pauseAfter(ctx context.Context, began time.Time) {
	select {
	case <-ctx.Done():
	case <-time.After(max(publishPause, publishShare*time.Since(began))):
	}
}

func (c *Controller) current() *inventory.Inventory {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inventory
}

// renew makes the inventory of the newest snapshot. It reports whether it differs, whether
// it leaves out other hosts, and whether it would if hold did not prevent that.
func (c *Controller) renew(hold bool) (changed, selects, held bool) {
	s := c.watch.Snapshot()
	if s == nil {
		return false, false, false
	}
	ours, _ := c.watch.Ours()
	nodes := c.nodeHosts()
	var before *inventory.Inventory
	if c.devices != nil {
		before = c.current()
	}
	inv := inventory.New(inventory.State{
		GPUs: s.GPUs, Spares: s.Spares, Hosts: hostsOf(nodes, s.Hosts), Nodes: nodes, Queued: c.watch.Queued(), Ours: ours,
		Uses: c.uses(), Lost: c.lost(),
		BoxTaints: s.BoxTaints, BoxLabels: s.BoxLabels, Performance: c.cfg.Performance, WholeGPUs: c.cfg.WholeGPUs, Before: before,
	})
	inv.SetRacks(s.Racks)
	c.cfg.Metrics.devices.Set(float64(len(inv.Devices)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inventory.Equal(inv) {
		return false, false, false
	}
	if hold {
		held = inv.KeepClosed(c.inventory)
	} else {
		selects = !inv.SameClosed(c.inventory)
	}
	c.inventory = inv
	return true, selects, held
}

// nodeHosts returns the nodes of the cluster, with the host that each names.
func (c *Controller) nodeHosts() map[string]string {
	out := map[string]string{}
	for _, obj := range c.nodes.GetStore().List() {
		out[obj.(*corev1.Node).Name] = hostNamed(obj)
	}
	return out
}

func hostNamed(node any) string { return node.(*corev1.Node).Labels[inventory.HostLabel] }

// hostsOf returns those hosts of a pool that nodes of the cluster name. The others serve no
// pod here, there may be thousands of them, and their IDs need not be values of labels, as
// the resource slices require: "host-" is an ID.
func hostsOf(nodes map[string]string, pool map[string]*dxpuv1.Host) map[string]*dxpuv1.Host {
	out := map[string]*dxpuv1.Host{}
	for _, id := range nodes {
		if pool[id] != nil {
			out[id] = pool[id]
		}
	}
	return out
}

// uses returns what the claims have of the devices.
func (c *Controller) uses() inventory.Uses {
	out := inventory.Uses{}
	for _, obj := range c.claims.GetStore().List() {
		if a := obj.(*resourceapi.ResourceClaim).Status.Allocation; a != nil {
			for i := range a.Devices.Results {
				out.Add(&a.Devices.Results[i])
			}
		}
	}
	return out
}

func isAllocated(claim any) bool { return claim.(*resourceapi.ResourceClaim).Status.Allocation != nil }

// lost returns the devices whose claims had a lease and lost it.
func (c *Controller) lost() map[string]bool {
	out := map[string]bool{}
	for _, obj := range c.claims.GetStore().List() {
		for _, d := range lostIn(obj) {
			out[d] = true
		}
	}
	return out
}

func lostIn(claim any) (out []string) {
	for _, d := range claim.(*resourceapi.ResourceClaim).Status.Devices {
		// A taint would evict the pods with the other shares of a GPU, too.
		if d.ShareID == nil && isLost(d) {
			out = append(out, d.Device)
		}
	}
	return out
}

// isLost reports whether a device of this driver was attached and has failed.
func isLost(d resourceapi.AllocatedDeviceStatus) bool {
	return d.Driver == inventory.Driver && isTrue(d, inventory.Failed) && isTrue(d, inventory.Attached)
}
