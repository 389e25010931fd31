//go:build linux

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/offer"
	"github.com/dxpu-project/dxpu/share"
)

// Record is a share as the state file has it.
type Record struct {
	ID      string      `json:"id"`
	Offline bool        `json:"offline,omitempty"`
	Compute share.PPM   `json:"compute_ppm"`
	Limit   share.PPM   `json:"limit_ppm"`
	Memory  int64       `json:"memory_bytes"`
	Kept    int64       `json:"kept_bytes,omitempty"` // room, where it is above Memory
	GPUs    []string    `json:"gpus"`                 // names
	UID     int         `json:"uid"`
	GID     int         `json:"gid"`
	Owner   *OwnerStamp `json:"owner,omitempty"` // the share ends with this process and those in the share
	MPS     bool        `json:"mps,omitempty"`   // the owner is a client of MPS
	// Lease is the lease of the pool that has the share; nil: a user made it.
	Lease *offer.Lease `json:"lease,omitempty"`
}

// OwnerStamp names a process, also when its process ID is used again.
type OwnerStamp struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since the boot
}

// file is the state file.
type file struct {
	Version int                       `json:"version"`
	Number  uint64                    `json:"number"`
	Shares  []Record                  `json:"shares"`
	Health  map[string]*gpuerr.Health `json:"health,omitempty"` // by the name of the GPU
	Places  map[string]int            `json:"places,omitempty"` // of the GPUs in the pool
}

const (
	fileVersion = 1
	maxFile     = 16 << 20
)

func (r *Record) spec(gpus []broker.GPU) (broker.Spec, error) {
	s := broker.Spec{ID: r.ID, Class: share.Online, Compute: r.Compute, Limit: r.Limit, Memory: r.Memory}
	if r.Offline {
		s.Class = share.Offline
	}
	for _, name := range r.GPUs {
		i := slices.IndexFunc(gpus, func(g broker.GPU) bool { return g.Name == name })
		if i < 0 {
			return s, fmt.Errorf("no GPU %q", name)
		}
		s.GPUs = append(s.GPUs, i)
	}
	return s, nil
}

// readState returns what the state file has.
func (a *Agent) readState() (f file, err error) {
	if a.config.State == "" {
		return f, nil
	}
	in, err := os.Open(a.config.State)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	} else if err != nil {
		return f, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	switch {
	case err != nil:
		return f, err
	case len(text) > maxFile:
		return f, fmt.Errorf("%s: over %d bytes", a.config.State, maxFile)
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return f, fmt.Errorf("%s: %w", a.config.State, err)
	}
	if f.Version != fileVersion {
		return f, fmt.Errorf("%s: version %d, want %d", a.config.State, f.Version, fileVersion)
	}
	return f, nil
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
	for i := range f.Shares {
		r := &f.Shares[i]
		if err := a.openLocked(r, true); err != nil {
			a.config.Log.Error("share of the state file is lost", "share", r.ID, "error", err)
		}
	}
	a.restoreHealthLocked(&f)
	a.flushLocked()
	return nil
}

// openLocked adds a share to the broker and opens its socket.
func (a *Agent) openLocked(r *Record, restored bool) error {
	spec, err := r.spec(a.config.Broker.GPUs)
	if err != nil {
		return err
	}
	if err := a.broker.Create(a.now(), spec, r.Kept); err != nil {
		return err
	}
	s, err := a.serve(r)
	if err != nil {
		a.broker.Abandon(a.now(), r.ID)
		return err
	}
	if r.Owner != nil && s.owner == nil && !restored {
		a.broker.Abandon(a.now(), r.ID)
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
	a.work.Go(func() { a.accept(s.listener, s.page, id) })
	return nil
}

// SocketPath returns the path of the socket of a share, below the folder of its agent.
func SocketPath(dir, id string) string { return filepath.Join(dir, id, "client", "agent.sock") }

// serve makes the folder, the page and the socket of a share.
func (a *Agent) serve(r *Record) (s *served, err error) {
	s = &served{record: *r}
	if s.page, err = newPage(); err != nil {
		return nil, err
	}
	s.page.beat(monotonic())
	if s.listener, err = listenShare(a.config.Dir, r); err != nil {
		a.discardLocked(r.ID)
		return nil, errors.Join(err, s.page.close())
	}
	if o := r.Owner; o != nil {
		s.owner = ownerOf(o)
	}
	return s, nil
}

// saver writes the state file, and removes folders, when shares have ended.
func (a *Agent) saver(ctx context.Context) error {
	for {
		select {
		case <-a.save:
			a.clean()
			if err := a.store(); err != nil {
				a.config.Log.Error("state is not written", "error", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// store writes the state file.
func (a *Agent) store() error {
	if a.config.State == "" {
		return nil
	}
	a.saving.Lock()
	defer a.saving.Unlock()
	f := file{Version: fileVersion, Shares: []Record{}}
	a.mu.Lock()
	f.Number, f.Health, f.Places = a.number, a.healthLocked(), a.places
	for _, st := range a.broker.Status() {
		if s := a.shares[st.Spec.ID]; s != nil {
			r := s.record
			r.Kept = 0
			if st.Kept > r.Memory {
				r.Kept = st.Kept
			}
			f.Shares = append(f.Shares, r)
		}
	}
	a.mu.Unlock()
	text, err := json.MarshalIndent(f, "", "\t")
	if err != nil {
		return err
	}
	return atomicfile.Write(a.config.State, append(text, '\n'))
}

// defaultGrace is the time that the processes of a share have to end.
const defaultGrace = 10 * time.Second

func isClosed(err error) bool { return errors.Is(err, net.ErrClosed) }
