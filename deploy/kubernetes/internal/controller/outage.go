package controller

import (
	"errors"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/pool"
)

// poolAway tells all claims that wait for a lease that the manager cannot be reached: a worker may
// be long in coming to them, and there is none before the pool has been read once.
func (c *Controller) poolAway(err error) {
	if errors.Is(err, pool.ErrEnded) {
		return // another manager may lead: the next attempt tells
	}
	for _, obj := range c.claims.GetStore().List() {
		claim := obj.(*resourceapi.ResourceClaim)
		if waits(claim) && len(c.watch.Leases(string(claim.UID))) == 0 {
			c.sayUnavailable(claim, err)
		}
	}
}

// poolReached looks at once at the claims that wait, and at those that have leases: they may have
// ended meanwhile. They begin a new back-off after a return, unless the manager has returned
// shortly before: one that comes and goes is asked as often as it comes. One goroutine calls it.
func (c *Controller) poolReached() {
	calm := time.Since(c.reached) >= retryMost
	c.reached = time.Now()
	for _, uid := range c.concerned() {
		if calm {
			c.queue.Forget(uid)
		}
		c.queue.Add(uid)
	}
}

// decides records whether the manager has created or deleted a lease, or failed to, as one without a
// quorum does whose streams stay open. When it does again, the claims that are tried again begin a new
// back-off, at most once in retryMost: a manager may fail now and then.
func (c *Controller) decides(does bool) {
	c.mu.Lock()
	resume := does && c.refusing && time.Since(c.resumed) >= retryMost
	c.refusing = (c.refusing || !does) && !resume
	if resume {
		c.resumed = time.Now()
	}
	c.mu.Unlock()
	if !resume {
		return
	}
	for _, uid := range c.concerned() {
		if c.queue.NumRequeues(uid) > 0 {
			c.queue.Forget(uid)
			c.queue.Add(uid)
		}
	}
}

// concerned returns the claims that wait, and those that have leases.
func (c *Controller) concerned() []string {
	_, out := c.watch.Ours()
	for _, obj := range c.claims.GetStore().List() {
		if claim := obj.(*resourceapi.ResourceClaim); waits(claim) {
			out = append(out, string(claim.UID))
		}
	}
	return out
}

// waits reports whether a claim has been allocated a device of the pool that is not attached, and
// has not failed.
func waits(claim *resourceapi.ResourceClaim) bool {
	a := claim.Status.Allocation
	if a == nil {
		return false
	}
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		if r.Driver != inventory.Driver || r.AdminAccess != nil && *r.AdminAccess {
			continue
		}
		share := ""
		if r.ShareID != nil {
			share = string(*r.ShareID)
		}
		if d := deviceStatus(claim, r.Device, share); d == nil || !isTrue(*d, inventory.Attached) && !isTrue(*d, inventory.Failed) {
			return true
		}
	}
	return false
}

// sayUnavailable makes an event of a claim that waits and of its pods, if an error is one of the
// manager or of the way to it: once until the claim is served, because there are many tries.
func (c *Controller) sayUnavailable(claim *resourceapi.ResourceClaim, err error) {
	if claim == nil || !waits(claim) || !errors.As(err, new(*connect.Error)) {
		return
	}
	objects := append(podsWith(claim), &corev1.ObjectReference{
		Kind: "ResourceClaim", APIVersion: resourceapi.SchemeGroupVersion.String(), Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
	})
	for _, o := range objects {
		if c.toldUnavailable(claim.UID, o.UID) {
			continue
		}
		c.recorder.Eventf(o, corev1.EventTypeWarning, "GPUPoolUnavailable", "GPU for claim %s: no manager of the pool (%s) serves it: %s. The controller goes on trying",
			claim.Name, c.cfg.Managers, strings.TrimSuffix(truncate(messageOf(err)), "."))
	}
}

// toldUnavailable reports whether an object has been told of the outage, and records that it is.
func (c *Controller) toldUnavailable(claim, object types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told[claim] == nil {
		c.told[claim] = map[types.UID]bool{}
	}
	told := c.told[claim][object]
	c.told[claim][object] = true
	return told
}

// served records that nothing is left to do for a claim: the next outage is another one.
func (c *Controller) served(claim string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.told, types.UID(claim))
}

// outageLog logs that the pool cannot be followed: when that begins, once in logPause while it lasts,
// and when it ends. An outage that begins sooner after the last line is logged then.
type outageLog struct {
	log klog.Logger

	mu     sync.Mutex
	began  time.Time // of this outage; zero: the pool is followed
	line   time.Time // the last
	logged bool      // this outage has a line
}

const logPause = time.Minute

func (l *outageLog) failed(err error) {
	if errors.Is(err, pool.ErrEnded) {
		l.log.V(2).Info("The pool is followed again", "err", err) // as after a change of the leader
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.began.IsZero() {
		l.began = now
	}
	if now.Sub(l.line) < logPause {
		return
	}
	l.line, l.logged = now, true
	l.log.Error(err, "The pool is out of reach; claims wait", "for", now.Sub(l.began).Round(time.Second))
}

func (l *outageLog) ended() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.logged {
		l.log.Info("The pool is within reach again", "after", time.Since(l.began).Round(time.Second))
	}
	l.began, l.logged = time.Time{}, false
}
