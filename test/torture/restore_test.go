package torture

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/pool/backup"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
)

// restores is the number of times that one backup is restored. The second restore must not give
// out what the first one has given out.
const restores = 2

// restoreEvery is the number of histories of which one restores a backup.
const restoreEvery = 3

// saved is a backup that was made during a storm.
type saved struct {
	file   []byte
	leases []*dxpuv1.Lease // of the history, with what the model looks at
}

// backUp makes a backup at some time of the storm. To callers it is a list of all leases.
func (h *history) backUp(ctx context.Context) error {
	for i := 0; ctx.Err() == nil; i++ {
		call := time.Now()
		b, err := h.download(ctx, i)
		if err != nil {
			wait(ctx, 50*time.Millisecond)
			continue
		}
		if err := b.decode(h.tenant); err != nil {
			return fmt.Errorf("the backup: %w", err)
		}
		h.record(watcher, call, opInput{kind: "list"}, listed(b.leases))
		h.backup = b
		return nil
	}
	return errors.New("no manager made a backup")
}

func (h *history) download(ctx context.Context, manager int) (*saved, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout)
	defer cancel()
	stream, err := h.apis[watcher][manager%len(h.managers)].Backup(ctx, connect.NewRequest(&dxpuv1.BackupRequest{}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }() // it was read to its end
	b := &saved{}
	for stream.Receive() {
		b.file = append(b.file, stream.Msg().Chunk...)
	}
	return b, stream.Err()
}

// decode reads the leases of a tenant.
func (b *saved) decode(tenant string) error {
	_, records, err := backup.Read(bytes.NewReader(b.file))
	if err != nil {
		return err
	}
	for key, raw := range records {
		if !strings.HasPrefix(key, "lease/") {
			continue
		}
		var r struct {
			ID              string            `json:"id"`
			Spec            json.RawMessage   `json:"spec"`
			State           dxpuv1.LeaseState `json:"state"`
			ResourceVersion uint64            `json:"resource_version"`
		}
		l := &dxpuv1.Lease{Spec: &dxpuv1.LeaseSpec{}}
		if err := json.Unmarshal(raw, &r); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if err := protojson.Unmarshal(r.Spec, l.Spec); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		l.Id, l.State, l.ResourceVersion = r.ID, r.State, r.ResourceVersion
		if l.Spec.Tenant == tenant {
			b.leases = append(b.leases, l)
		}
	}
	return nil
}

// restoring restores the backup into new clusters, one after another, to which the old nodes
// come back with bindings that the backup does not know.
func (e *exam) restoring() error {
	if e.backup == nil {
		return nil
	}
	path := filepath.Join(e.managers[0].dir, "restored.backup")
	if err := os.WriteFile(path, e.backup.file, 0o600); err != nil {
		return err
	}
	res, err := e.listPage(e.ctx, 0, 0, e.tenant)
	if err != nil {
		return err
	}
	incarnations := map[uint64]bool{revision.Incarnation(res.Revision): true}
	known := map[string]bool{}
	for _, id := range e.known {
		known[id] = true
	}
	for i := range restores {
		if err := e.occupy(known); err != nil {
			return fmt.Errorf("before restore %d: %w", i+1, err)
		}
		if err := e.replaceCluster(path); err != nil {
			return err
		}
		if err := e.uncordonAll(); err != nil {
			return fmt.Errorf("after restore %d: %w", i+1, err)
		}
		if err := e.settled(e.ctx, e.tenant, -1); err != nil {
			return fmt.Errorf("after restore %d: %w", i+1, err)
		}
		if err := e.checkRestored(incarnations); err != nil {
			return fmt.Errorf("after restore %d: %w", i+1, err)
		}
	}
	if err := e.occupy(known); err != nil { // after the last restore
		return err
	}
	if err := e.endAll(); err != nil {
		return err
	}
	if err := e.settled(e.ctx, e.tenant, 0); err != nil {
		return err
	}
	return e.endAccess(e.ctx, e.tenant)
}

// occupy gives some GPUs to leases. Their IDs and those of their bindings are new.
func (e *exam) occupy(known map[string]bool) error {
	if err := e.endAll(); err != nil {
		return err
	}
	if err := e.settled(e.ctx, e.tenant, 0); err != nil {
		return err
	}
	old := e.bindingsSeen()
	for range 3 {
		l, err := e.create(&dxpuv1.LeaseSpec{Count: 1})
		if connect.CodeOf(err) == connect.CodeResourceExhausted { // the backup has unstable nodes
			return nil
		}
		if err != nil {
			return err
		}
		if known[l.Id] {
			return fmt.Errorf("lease %s is another one than before", l.Id)
		}
		known[l.Id] = true
		if err := e.reaches(l.Id, active); err != nil {
			return err
		}
		if l, err = e.lease(e.ctx, 0, 0, l.Id); err != nil {
			return err
		}
		for _, b := range l.Bindings {
			for id, epoch := range old {
				if id == b.Id || epoch == b.Epoch {
					return fmt.Errorf("binding %s with epoch %d is new, and a node has had %s with epoch %d", b.Id, b.Epoch, id, epoch)
				}
			}
		}
	}
	return nil
}

// endAll ends all leases of the tenant.
func (e *exam) endAll() error {
	leases, err := e.list(e.ctx, 0, 0, e.tenant)
	if err != nil {
		return err
	}
	for _, l := range leases {
		if phaseOf(l) == live {
			if err := e.end(l.Id); err != nil {
				return err
			}
		}
	}
	return nil
}

// replaceCluster stops all managers and starts others from a backup. One node is away meanwhile,
// and comes back with an old disk.
func (e *exam) replaceCluster(backup string) error {
	away := e.nodes[e.n%len(e.nodes)]
	away.halt()
	for _, m := range e.managers {
		if err := m.kill(); err != nil {
			return err
		}
	}
	for _, m := range e.managers {
		if err := m.startFrom(backup); err != nil {
			return err
		}
	}
	return away.comeBack(true)
}

// startFrom starts a manager with an empty disk and a backup.
func (m *manager) startFrom(backup string) error {
	entries, err := os.ReadDir(m.dataDir)
	for _, f := range entries {
		err = cmp.Or(err, os.RemoveAll(filepath.Join(m.dataDir, f.Name())))
	}
	if err != nil {
		return err
	}
	args := m.args
	m.args = append(slices.Clone(args), "--restore", backup)
	err = m.start()
	m.args = args
	return err
}

// uncordonAll ends the drains that went on when the backup was made.
func (e *exam) uncordonAll() error {
	for _, n := range e.nodes {
		_, _, err := ask(e.ctx, e.pool, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (any, error) {
			return api.Uncordon(ctx, connect.NewRequest(&dxpuv1.UncordonRequest{Target: n.target()}))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkRestored checks that the pool has the leases of the backup and an incarnation of its own.
func (e *exam) checkRestored(incarnations map[uint64]bool) error {
	res, err := e.listPage(e.ctx, 0, 0, e.tenant)
	if err != nil {
		return err
	}
	i := revision.Incarnation(res.Revision)
	if incarnations[i] {
		return fmt.Errorf("incarnation %d of the pool is not the first of that number", i)
	}
	incarnations[i] = true
	e.restored++
	want := listed(e.backup.leases).leases
	got := listed(res.Leases).leases
	if !maps.EqualFunc(got, want, func(got, want seen) bool {
		return got.count <= want.count && (got.phase == want.phase || want.phase == live)
	}) {
		return fmt.Errorf("the leases are %v, and in the backup %v", got, want)
	}
	return nil
}
