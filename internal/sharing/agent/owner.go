//go:build linux

package agent

import (
	"errors"
	"fmt"
	"net/http"
)

// stampOf names a process.
func stampOf(pid int) (*OwnerStamp, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("process %d cannot own a share", pid)
	}
	start, err := startOf(pid)
	if err != nil {
		return nil, fmt.Errorf("the process that is to own the share: %w", err)
	}
	return &OwnerStamp{PID: pid, Start: start, Boot: bootID()}, nil
}

// ownerOf returns the owner of a share, or nil if it has ended.
func ownerOf(o *OwnerStamp) *pidfd {
	if o.Boot != "" && o.Boot != bootID() {
		return nil
	}
	p, err := openPidfd(o.PID)
	if err != nil {
		return nil
	}
	if start, err := startOf(o.PID); err != nil || start != o.Start {
		p.close()
		return nil
	}
	return p
}

// watchOwner abandons a share when its owner ends, unless it has another one by then.
func (a *Agent) watchOwner(s *served, owner *pidfd) {
	if !owner.wait() {
		return
	}
	a.enter()
	defer a.mu.Unlock()
	if a.shares[s.record.ID] == s && s.owner == owner && !a.closing {
		a.leaveLocked(s)
	}
	early := s.restored && a.now() < begin+settleAfter
	if a.shares[s.record.ID] == s && s.owner == owner && !a.closing && !early {
		a.broker.Abandon(a.now(), s.record.ID)
		a.flushLocked()
	}
}

// abandonLocked abandons the shares whose owners have ended: those of a former agent get
// the time to come back first.
func (a *Agent) abandonLocked() {
	for id, s := range a.shares {
		if s.record.Owner != nil && (s.owner == nil || s.owner.ended()) {
			a.broker.Abandon(a.now(), id)
		}
	}
}

// adopt gives a share another owner, such as the first process of a container that did not
// run when the share was made.
func (a *Agent) adopt(r *http.Request) (any, error) {
	part, _, err := asked(r)
	if err != nil {
		return nil, err
	}
	return struct{}{}, a.change(r, func(s *served) error {
		if err := a.leasedLocked(s); err != nil {
			return err
		}
		stamp, err := stampOf(part.Owner)
		if err != nil {
			return err
		}
		owner := ownerOf(stamp)
		switch {
		case owner == nil:
			return fmt.Errorf("process %d has ended", part.Owner)
		case s.record.Owner != nil && (s.owner == nil || s.owner.ended()):
			owner.close()
			return errors.New("the share ends: its owner has ended")
		}
		if s.owner != nil {
			s.owner.close()
		}
		s.owner, s.record.Owner = owner, stamp
		a.work.Go(func() { a.watchOwner(s, owner) })
		return nil
	})
}
