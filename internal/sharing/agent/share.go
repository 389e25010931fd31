//go:build linux

package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
	"github.com/dxpu-project/dxpu/internal/rawio/rights"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/offer"
	"github.com/dxpu-project/dxpu/share"
)

// Record is a share as the state file has it.
type Record struct {
	ID      string       `json:"id"`
	Offline bool         `json:"offline,omitempty"`
	Parts   []RecordPart `json:"parts"` // one for each GPU, in the order of the user
	// Page names the GPUs in the order of the page, where that is not the order of Parts: also
	// those that the share has no more, because programs know a GPU by its place.
	Page  []string    `json:"page,omitempty"`
	UID   int         `json:"uid"`
	GID   int         `json:"gid"`
	Owner *OwnerStamp `json:"owner,omitempty"` // the share ends with this process and those in the share
	MPS   bool        `json:"mps,omitempty"`   // the owner is a client of MPS
	Held  bool        `json:"held,omitempty"`  // its launches wait
	// Made tells the share from former ones with its name; zero: of an earlier version.
	Made uint64 `json:"made,omitempty"`
	// Ending is the time that its processes have to end, because a user has ended it; nil: none has.
	Ending *time.Duration `json:"ending_ns,omitempty"`
}

// RecordPart is what a share has of one GPU, as the state file has it.
type RecordPart struct {
	GPU     string    `json:"gpu"` // name
	Compute share.PPM `json:"compute_ppm"`
	Limit   share.PPM `json:"limit_ppm"`
	Memory  int64     `json:"memory_bytes"`
	Kept    int64     `json:"kept_bytes,omitempty"` // room, where it is above Memory
	// Lease is the binding of the pool that the part belongs to; nil: a user made it. All
	// parts of a share belong to one lease, or none does.
	Lease *offer.Lease `json:"lease,omitempty"`
}

// lease returns a binding of the lease that has the share; nil: a user made it.
func (r *Record) lease() *offer.Lease { return r.Parts[0].Lease }

// part returns the part of a GPU, nil if there is none.
func (r *Record) part(gpu string) *RecordPart {
	i := slices.IndexFunc(r.Parts, func(p RecordPart) bool { return p.GPU == gpu })
	if i < 0 {
		return nil
	}
	return &r.Parts[i]
}

// withPart returns the record with one part changed, or added. Readers may have the former one.
func (r *Record) withPart(p RecordPart) Record {
	next := *r
	next.Parts = slices.Clone(r.Parts)
	if old := next.part(p.GPU); old != nil {
		*old = p
	} else {
		next.Parts = append(next.Parts, p)
	}
	return next
}

// OwnerStamp names a process, also when its process ID is used again, or the machine boots again.
type OwnerStamp struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`          // in clock ticks since the boot
	Boot  string `json:"boot,omitempty"` // which one; "": of an earlier version, which did not tell
}

// file is the state file.
type file struct {
	Version int                       `json:"version"`
	Number  uint64                    `json:"number"`
	Shares  []Record                  `json:"shares"`
	Health  map[string]*gpuerr.Health `json:"health,omitempty"` // by the name of the GPU
	Places  map[string]int            `json:"places,omitempty"` // of the GPUs in the pool
	GPUs    map[string]knownGPU       `json:"gpus,omitempty"`
}

// The version of the state file. Version 1 had one size for all GPUs of a share.
const (
	fileVersion = 2
	maxFile     = 16 << 20
)

func (r *Record) spec(gpus []broker.GPU) (broker.Spec, error) {
	s := broker.Spec{ID: r.ID, Class: share.Online}
	if r.Offline {
		s.Class = share.Offline
	}
	for _, name := range r.page() {
		q := r.part(name)
		gone := q == nil
		if gone {
			q = &RecordPart{GPU: name}
		}
		p, err := q.of(gpus)
		if err != nil {
			return s, err
		}
		p.Gone = gone
		s.Parts = append(s.Parts, p)
	}
	return s, nil
}

// page returns the names of the GPUs in the order of the page.
func (r *Record) page() []string {
	out := slices.Clone(r.Page)
	for i := range r.Parts {
		if name := r.Parts[i].GPU; !slices.Contains(r.Page, name) {
			out = append(out, name)
		}
	}
	return out
}

// indexOf returns the index of the GPU with a name, -1 without one.
func indexOf(list []broker.GPU, name string) int {
	return slices.IndexFunc(list, func(g broker.GPU) bool { return g.Name == name })
}

// of returns the part as the broker has it.
func (p *RecordPart) of(gpus []broker.GPU) (broker.Part, error) {
	i := indexOf(gpus, p.GPU)
	if i < 0 {
		return broker.Part{}, fmt.Errorf("no GPU %q", p.GPU)
	}
	return broker.Part{GPU: i, Memory: p.Memory, Compute: p.Compute, Limit: p.Limit, Kept: p.Kept}, nil
}

// restore opens the shares of the state file.
func (a *Agent) restore() error {
	f, err := a.readState()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.number, a.beaten = f.Number, monotonic()
	live := func(id string) bool {
		return slices.ContainsFunc(f.Shares, func(r Record) bool { return r.ID == id })
	}
	if err := a.sortOutLocked(live); err != nil {
		return err
	}
	signal(a.save)
	if err := a.recognise(&f); err != nil { // the former agent may have written it since New
		return err
	}
	for i := range f.Shares {
		if len(f.Shares[i].Parts) == 0 {
			continue
		}
		if err := a.reopenLocked(&f, &f.Shares[i]); err != nil {
			return err
		}
	}
	a.chargeLocked()
	a.stopMissingLocked()
	a.restoreHealthLocked(&f)
	a.flushLocked()
	return nil
}

// openLocked adds a share to the broker and opens its socket.
func (a *Agent) openLocked(r *Record, restored bool) error {
	if !restored {
		r.Made = rand.Uint64()
	}
	spec, err := r.spec(a.config.Broker.GPUs)
	if err != nil {
		return err
	}
	if err := a.broker.Create(a.now(), spec); err != nil {
		return err
	}
	if r.Held {
		if err := a.broker.Hold(a.now(), r.ID, true); err != nil {
			return err
		}
	}
	s, err := a.serve(r)
	if err != nil {
		a.unmakeLocked(r.ID)
		return err
	}
	if r.Owner != nil && s.owner == nil && !restored {
		a.unmakeLocked(r.ID)
		a.discardLocked(r.ID)
		s.close()
		return errors.New("the process that asks has ended")
	}
	s.restored = restored
	if restored {
		a.broker.Restored(r.ID)
		a.restoreClientLocked(s)
	}
	id := r.ID
	a.shares[id] = s
	if s.owner != nil {
		owner := s.owner
		a.work.Go(func() { a.watchOwner(s, owner) })
	}
	a.work.Go(func() { a.accept(s.listener, s.trash, s.page, id) })
	return nil
}

// unmakeLocked takes a share that is not served from the broker. Its end is handled now:
// later it would be that of another share with the name.
func (a *Agent) unmakeLocked(id string) {
	a.broker.Abandon(a.now(), id)
	a.flushLocked()
}

// SocketPath returns the path of the socket of a share, below the folder of its agent.
func SocketPath(dir, id string) string { return filepath.Join(dir, id, "client", "agent.sock") }

// serve makes the folder, the page and the socket of a share.
func (a *Agent) serve(r *Record) (s *served, err error) {
	s = &served{record: *r, trash: new(rights.Disposer)}
	if s.page, err = newPage(); err != nil {
		return nil, err
	}
	s.page.beat(monotonic())
	l, err := listenShare(a.config.Dir, r)
	if err != nil {
		a.discardLocked(r.ID)
		return nil, errors.Join(err, s.page.close())
	}
	s.listener = rights.NewListener(l, s.trash)
	if o := r.Owner; o != nil {
		s.owner = ownerOf(o)
	}
	return s, nil
}

// saver writes the state file, and removes folders, when shares have ended. A file that could not
// be written is written later: an agent that is killed before that would bring ended shares back.
func (a *Agent) saver(ctx context.Context) error {
	again := time.NewTimer(time.Hour)
	again.Stop()
	defer again.Stop()
	for {
		select {
		case <-a.save:
			a.clean()
		case <-again.C:
		case <-ctx.Done():
			return nil
		}
		if err := a.store(); err != nil {
			a.config.Log.Error("state is not written, and is tried again", "error", err)
			again.Reset(cmp.Or(a.config.Retry, storePause))
		}
	}
}

// storePause is the pause after the state file could not be written.
const storePause = 5 * time.Second

// store writes the state file.
func (a *Agent) store() error {
	if a.config.State == "" {
		return nil
	}
	a.saving.Lock()
	defer a.saving.Unlock()
	f := file{Version: fileVersion, Shares: []Record{}}
	a.mu.Lock()
	f.Number, f.Health, f.Places, f.GPUs = a.number, a.healthLocked(), a.places, a.knownLocked()
	for _, st := range a.broker.Status() {
		if s := a.shares[st.ID]; s != nil {
			f.Shares = append(f.Shares, a.recordLocked(s, &st))
		}
	}
	a.mu.Unlock()
	text, err := json.MarshalIndent(f, "", "\t")
	if err != nil {
		return err
	}
	return atomicfile.Write(a.config.State, append(text, '\n'))
}

// recordLocked returns the record of a share with the room that it has.
func (a *Agent) recordLocked(s *served, st *broker.Status) Record {
	r := s.record
	r.Parts, r.Page = slices.Clone(r.Parts), nil
	for i := range r.Parts {
		r.Parts[i].Kept = 0
	}
	for i := range st.Parts {
		q := &st.Parts[i]
		if p := r.part(a.config.Broker.GPUs[q.GPU].Name); p != nil && q.Kept > p.Memory {
			p.Kept = q.Kept
		}
	}
	var page []string
	for _, gpu := range st.Page {
		page = append(page, a.config.Broker.GPUs[gpu].Name)
	}
	if !slices.Equal(page, r.page()) {
		r.Page = page
	}
	return r
}

// defaultGrace is the time that the processes of a share have to end.
const defaultGrace = 10 * time.Second

func isClosed(err error) bool { return errors.Is(err, net.ErrClosed) }
