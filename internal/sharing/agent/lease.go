//go:build linux

package agent

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/offer"
)

// A pool's manager may divide the GPUs in place of the users of this machine (package
// offer). Then a share belongs to a lease of the pool: it has no owner among the processes,
// its size is the manager's, and users may only run programs in it.

// Ready is closed when the agent has taken over the shares of its state file.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// Changes has an element when shares or GPUs have changed.
func (a *Agent) Changes() <-chan struct{} { return a.changed }

// Place returns the place of a GPU in the pool, which is the same in all starts of the
// agent; false if there are too many GPUs.
func (a *Agent) Place(gpu string) (int, bool) {
	place, ok := a.places[gpu]
	return place, ok
}

// assignPlaces gives each GPU a place. Those that have one keep it, also while they are gone
// as long as others need none.
func assignPlaces(had map[string]int, gpus []broker.GPU) map[string]int {
	out, taken := map[string]int{}, map[int]bool{}
	for name, place := range had {
		if place >= 0 && place < offer.MaxGPUs && !taken[place] {
			out[name], taken[place] = place, true
		}
	}
	here := func(name string) bool {
		return slices.ContainsFunc(gpus, func(g broker.GPU) bool { return g.Name == name })
	}
	for _, g := range gpus {
		if _, ok := out[g.Name]; ok {
			continue
		}
		if len(taken) == offer.MaxGPUs {
			for name, place := range out {
				if !here(name) {
					delete(out, name)
					delete(taken, place)
				}
			}
		}
		for place := range offer.MaxGPUs {
			if !taken[place] {
				out[g.Name], taken[place] = place, true
				break
			}
		}
	}
	return out
}

// Offered returns what the agent has for the pool.
func (a *Agent) Offered() offer.Seen {
	a.mu.Lock()
	defer a.mu.Unlock()
	seen := offer.Seen{Conditions: map[string]offer.Condition{}}
	for i := range a.config.Broker.GPUs {
		_, why, _ := a.stateLocked(i)
		seen.Conditions[a.config.Broker.GPUs[i].Name] = offer.Condition{Failed: why}
	}
	for _, st := range a.broker.Status() {
		s := a.shares[st.Spec.ID]
		if s == nil {
			continue
		}
		if s.record.Lease == nil {
			for _, g := range s.record.GPUs {
				c := seen.Conditions[g]
				c.Others = append(c.Others, s.record.ID)
				seen.Conditions[g] = c
			}
			continue
		}
		seen.Shares = append(seen.Shares, offer.Share{
			Lease: *s.record.Lease, GPU: s.record.GPUs[0], Memory: st.Spec.Memory, Kept: st.Kept, Compute: st.Spec.Compute,
			Offline: s.record.Offline, Processes: len(st.Processes), Launches: st.Launches,
		})
	}
	return seen
}

// errEarly says that programs of a share may still come back to an agent that has begun.
var errEarly = errors.New("the agent has just begun, and waits for the programs of the share")

// Do carries out an action of the pool, and writes the state.
func (a *Agent) Do(x *offer.Action) error {
	a.enter()
	err := a.doLocked(x)
	a.flushLocked()
	a.mu.Unlock()
	if err != nil {
		return err
	}
	return a.store()
}

func (a *Agent) doLocked(x *offer.Action) error {
	if a.closing {
		return errors.New("the agent ends")
	}
	if x.Kind == offer.Open {
		return a.openLeaseLocked(x)
	}
	s := a.sharedByLocked(x.Binding)
	if s == nil {
		return fmt.Errorf("binding %s has no share", x.ID)
	}
	switch x.Kind {
	case offer.Attach:
		s.setLease(func(l *offer.Lease) { l.Attached = true })
	case offer.Resize:
		next := s.record
		next.Memory, next.Compute, next.Limit = x.Memory, x.Compute, x.Compute
		spec, err := next.spec(a.config.Broker.GPUs)
		if err == nil {
			err = a.broker.Resize(a.now(), spec)
		}
		if err != nil {
			return err
		}
		s.record = next
	case offer.End:
		if s.restored && a.now() < settleAfter {
			a.broker.Evict(a.now(), s.record.ID, "its lease has ended", x.Grace)
			return errEarly
		}
		s.setLease(func(l *offer.Lease) { l.Leaving = true })
		return a.broker.End(a.now(), s.record.ID, x.Grace)
	}
	return nil
}

// setLease changes what a share knows of its lease. Readers may have the former value.
func (s *served) setLease(change func(*offer.Lease)) {
	next := *s.record.Lease
	change(&next)
	s.record.Lease = &next
}

func (a *Agent) sharedByLocked(b offer.Binding) *served {
	for _, s := range a.shares {
		if s.record.Lease != nil && s.record.Lease.Binding == b {
			return s
		}
	}
	return nil
}

// openLeaseLocked makes the share of a binding. It has the name of the lease, if that is
// free, and belongs to the agent's user until a program comes.
func (a *Agent) openLeaseLocked(x *offer.Action) error {
	if s := a.sharedByLocked(x.Binding); s != nil {
		return fmt.Errorf("binding %s has the share %s already", x.ID, s.record.ID)
	}
	lease := x.Lease
	r := Record{
		ID: lease.Lease, Lease: &lease, Offline: x.Offline, Memory: x.Memory, Compute: x.Compute, Limit: x.Compute,
		GPUs: []string{x.GPU}, UID: a.uid, GID: os.Getgid(),
	}
	if a.shares[r.ID] != nil {
		r.ID = strings.ToLower(x.ID)
	}
	if err := a.openLocked(&r, false); err != nil {
		return err
	}
	a.config.Log.Info("share of a lease", "lease", lease.Lease, "binding", lease.ID, "gpu", x.GPU, "memory", x.Memory)
	return nil
}

// leasedLocked refuses what only the manager may do to the share of a lease. An agent
// without a pool has only users who could.
func (a *Agent) leasedLocked(s *served) error {
	if l := s.record.Lease; l != nil && a.config.Pool != "" {
		return fmt.Errorf("the share is that of lease %s: change the lease", l.Lease)
	}
	return nil
}

// enterLease lets a user run programs in the share of a lease: the first one, and root.
func (a *Agent) enterLease(r *http.Request) (any, error) {
	p, ok := r.Context().Value(peerKey{}).(peer)
	if !ok {
		return nil, errors.New("the process that asks is not known")
	}
	id := r.PathValue("id")
	a.enter()
	s, err := a.enteredLocked(id)
	claim := err == nil && s != nil && p.Uid != 0 && int(p.Uid) != s.record.UID
	if claim {
		err = a.claimLocked(s, p)
	}
	var out Entered
	if err == nil && s != nil {
		out.Ready = true
		out.Share, err = a.oneLocked(s.record.ID)
	}
	a.mu.Unlock()
	if err == nil && claim {
		err = a.store()
	}
	return out, err
}

// enteredLocked returns the share of a lease that takes programs, nil if there is none yet.
func (a *Agent) enteredLocked(lease string) (*served, error) {
	if a.config.Pool == "" {
		return nil, errors.New("the agent is in no pool: it was started without --manager")
	}
	for _, s := range a.shares {
		if l := s.record.Lease; l != nil && l.Lease == lease {
			if l.Leaving {
				return nil, fmt.Errorf("lease %s ends", lease)
			}
			if l.Attached {
				return s, nil
			}
		}
	}
	return nil, nil
}

// claimLocked gives the folder of a share to the first user who runs a program in it.
func (a *Agent) claimLocked(s *served, p peer) error {
	if s.record.UID != a.uid {
		return fmt.Errorf("lease %s is used by user %d", s.record.Lease.Lease, s.record.UID)
	}
	if err := os.Lchown(filepath.Join(a.config.Dir, s.record.ID), int(p.Uid), int(p.Gid)); err != nil {
		return err
	}
	s.record.UID, s.record.GID = int(p.Uid), int(p.Gid)
	return nil
}
