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
	"time"

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
	a.mu.Lock()
	defer a.mu.Unlock()
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
	for _, g := range gpus {
		if _, ok := out[g.Name]; ok {
			continue
		}
		if len(taken) == offer.MaxGPUs {
			for name, place := range out {
				if indexOf(gpus, name) < 0 {
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
		if !a.visibleLocked(i) {
			continue
		}
		_, why, _ := a.stateLocked(i)
		seen.Conditions[a.config.Broker.GPUs[i].Name] = offer.Condition{Failed: why}
	}
	for _, st := range a.broker.Status() {
		s := a.shares[st.ID]
		if s == nil {
			continue
		}
		for i := range st.Parts {
			a.offerPart(&seen, s, &st.Parts[i], len(st.Processes))
		}
	}
	return seen
}

// offerPart adds what a share has of one GPU. Programs that have not used the GPU count where
// none has: they may begin to.
func (a *Agent) offerPart(seen *offer.Seen, s *served, q *broker.PartStatus, processes int) {
	gpu := a.config.Broker.GPUs[q.GPU].Name
	p := s.record.part(gpu)
	switch {
	case p == nil:
	case p.Lease == nil:
		c := seen.Conditions[gpu]
		c.Others = append(c.Others, s.record.ID)
		seen.Conditions[gpu] = c
	default:
		lease := *p.Lease
		lease.Leaving = lease.Leaving || q.Leaving
		if q.Users > 0 {
			processes = q.Users
		}
		seen.Shares = append(seen.Shares, offer.Share{
			Lease: lease, Memory: q.Memory, Kept: q.Kept, Compute: q.Compute,
			Offline: s.record.Offline, Processes: processes, Launches: q.Launches,
		})
	}
}

// errEarly says that programs of a share may still come back to an agent that has begun.
var errEarly = errors.New("the agent has just begun, and waits for the programs of the share")

// Do carries out an action of the pool, and writes the state.
func (a *Agent) Do(x *offer.Action) error {
	if x.Kind == offer.Resize {
		a.resizing.Lock()
		defer a.resizing.Unlock()
		if err := a.promise(func() (*served, []broker.Part, error) {
			s, _, q, err := a.resizedLocked(x)
			return s, []broker.Part{q}, err
		}); err != nil {
			return err
		}
	}
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
	s, p := a.boundLocked(x.Binding)
	if s == nil {
		return noShare(x)
	}
	switch x.Kind {
	case offer.Attach:
		s.setLease(p, func(l *offer.Lease) { l.Attached = true })
	case offer.Resize:
		_, p, q, err := a.resizedLocked(x)
		if err == nil {
			err = a.broker.Resize(a.now(), s.record.ID, q)
		}
		if err != nil {
			a.broker.Withhold(s.record.ID)
			return err
		}
		s.record = s.record.withPart(p)
	case offer.End:
		return a.endPartLocked(s, p, x.Grace)
	}
	return nil
}

func noShare(x *offer.Action) error { return fmt.Errorf("binding %s has no share", x.ID) }

// resizedLocked returns the share of a binding that is to be resized, and its new part.
func (a *Agent) resizedLocked(x *offer.Action) (*served, RecordPart, broker.Part, error) {
	s, p := a.boundLocked(x.Binding)
	if s == nil {
		return nil, p, broker.Part{}, noShare(x)
	}
	p.Memory, p.Compute, p.Limit = x.Memory, x.Compute, x.Compute
	q, err := p.of(a.config.Broker.GPUs)
	return s, p, q, err
}

// endPartLocked takes the part of a binding from its share. A share does not end before
// programs of a former agent had the time to come back: they are asked to end, too.
func (a *Agent) endPartLocked(s *served, p RecordPart, grace time.Duration) error {
	q, err := p.of(a.config.Broker.GPUs)
	if err != nil {
		return err
	}
	last := !slices.ContainsFunc(s.record.Parts, func(o RecordPart) bool { return o.GPU != p.GPU && !o.Lease.Leaving })
	if last && s.restored && a.now() < begin+settleAfter {
		a.broker.Evict(a.now(), s.record.ID, "its lease has ended", grace)
		return errEarly
	}
	s.setLease(p, func(l *offer.Lease) { l.Leaving = true })
	return a.broker.Drop(a.now(), s.record.ID, q.GPU, grace)
}

// setLease changes what a part knows of its lease.
func (s *served) setLease(p RecordPart, change func(*offer.Lease)) {
	next := *p.Lease
	change(&next)
	p.Lease = &next
	s.record = s.record.withPart(p)
}

// boundLocked returns the share of a binding, and its part; nil if there is none.
func (a *Agent) boundLocked(b offer.Binding) (*served, RecordPart) {
	for _, s := range a.shares {
		for i := range s.record.Parts {
			if p := s.record.Parts[i]; p.Lease != nil && p.Lease.Binding == b {
				return s, p
			}
		}
	}
	return nil, RecordPart{}
}

// livingLocked returns the share of a lease that is not about to end, nil if there is none.
func (a *Agent) livingLocked(pool, lease string) *served {
	for _, s := range a.shares {
		if l := s.record.lease(); l == nil || l.Pool != pool || l.Lease != lease {
			continue
		}
		if slices.ContainsFunc(s.record.Parts, func(p RecordPart) bool { return !p.Lease.Leaving }) {
			return s
		}
	}
	return nil
}

// openLeaseLocked makes the part of a binding. It is in the share of its lease: a program
// has all GPUs of the lease. That share has the name of the lease, if it is free, and belongs
// to the agent's user until a program comes.
func (a *Agent) openLeaseLocked(x *offer.Action) error {
	if s, _ := a.boundLocked(x.Binding); s != nil {
		return fmt.Errorf("binding %s has the share %s already", x.ID, s.record.ID)
	}
	lease := x.Lease
	gpu, err := a.placedLocked(x.BoxSlot)
	if err != nil {
		return err
	}
	p := RecordPart{GPU: gpu, Memory: x.Memory, Compute: x.Compute, Limit: x.Compute, Lease: &lease}
	if s := a.livingLocked(lease.Pool, lease.Lease); s != nil {
		return a.widenLocked(s, p)
	}
	r := Record{ID: lease.Lease, Offline: x.Offline, Parts: []RecordPart{p}, UID: a.uid, GID: os.Getgid()}
	if a.shares[r.ID] != nil {
		r.ID = strings.ToLower(x.ID)
	}
	if err := a.openLocked(&r, false); err != nil {
		return err
	}
	a.config.Log.Info("share of a lease", "lease", lease.Lease, "binding", lease.ID, "gpu", gpu, "memory", x.Memory)
	return nil
}

// placedLocked returns the name that the GPU of a slot of the box has now.
func (a *Agent) placedLocked(slot uint32) (string, error) {
	place, _ := offer.Place(slot)
	for name, at := range a.places {
		if at == place && indexOf(a.config.Broker.GPUs, name) >= 0 {
			return name, nil
		}
	}
	return "", fmt.Errorf("the machine has no GPU for slot %d", slot)
}

// widenLocked gives the share of a lease one more GPU.
func (a *Agent) widenLocked(s *served, p RecordPart) error {
	q, err := p.of(a.config.Broker.GPUs)
	if err == nil {
		err = a.broker.Add(a.now(), s.record.ID, q)
	}
	if err != nil {
		return err
	}
	s.record = s.record.withPart(p)
	a.config.Log.Info("share of a lease has one more GPU", "lease", p.Lease.Lease, "binding", p.Lease.ID, "gpu", p.GPU, "memory", p.Memory)
	return nil
}

// leasedLocked refuses what only the manager may do to the share of a lease. An agent
// without a pool has only users who could.
func (a *Agent) leasedLocked(s *served) error {
	if l := s.record.lease(); l != nil && a.config.Pool != "" {
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
// It takes none while a GPU comes: a program has those of its start.
func (a *Agent) enteredLocked(lease string) (*served, error) {
	if a.config.Pool == "" {
		return nil, errors.New("the agent is in no pool: it was started without --manager")
	}
	ends := false
	for _, s := range a.shares {
		if l := s.record.lease(); l == nil || l.Lease != lease {
			continue
		}
		left, coming := 0, false
		for i := range s.record.Parts {
			switch l := s.record.Parts[i].Lease; {
			case l.Leaving:
				left++
			case !l.Attached:
				coming = true
			}
		}
		if left == len(s.record.Parts) {
			ends = true
		} else if !coming {
			return s, nil
		}
	}
	if ends {
		return nil, fmt.Errorf("lease %s ends", lease)
	}
	return nil, nil
}

// claimLocked gives the folder of a share to the first user who runs a program in it.
func (a *Agent) claimLocked(s *served, p peer) error {
	if s.record.UID != a.uid {
		return fmt.Errorf("lease %s is used by user %d", s.record.lease().Lease, s.record.UID)
	}
	if err := os.Lchown(filepath.Join(a.config.Dir, s.record.ID), int(p.Uid), int(p.Gid)); err != nil {
		return err
	}
	s.record.UID, s.record.GID = int(p.Uid), int(p.Gid)
	return nil
}
