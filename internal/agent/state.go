package agent

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Files of the state directory. Both hold secrets and have mode 0600.
const (
	identityFile = "node.json"
	desiredFile  = "desired.pb"
)

// identityVersion is the version of the identity record. A record with another
// version is refused: without its credential the node would enrol as a new one.
const identityVersion = 1

// identity is the result of enrolment, as it is kept on disk.
type identity struct {
	Version    int    `json:"version"`
	ClusterID  string `json:"cluster_id"`
	NodeID     string `json:"node_id"`
	NodeNumber uint32 `json:"node_number"`
	Credential string `json:"credential"`
	// Certificate identifies the node to a manager with TLS. Key is its private key
	// and CA the manager's authority. All are PEM.
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
	CA          string `json:"ca,omitempty"`
	// HeartbeatMS is the heartbeat interval that the manager asked for, in
	// milliseconds.
	HeartbeatMS int64 `json:"heartbeat_ms"`
}

func newInstanceID() string { return rand.Text()[:12] }

// load reads the files of an earlier run. A desired state that cannot be read is
// an error, because a start without it would end every binding.
func (a *Agent) load() error {
	if a.cfg.StateDir == "" {
		return nil
	}
	raw, err := os.ReadFile(a.path(identityFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("agent: read identity: %w", err)
	}
	var id identity
	if err := json.Unmarshal(raw, &id); err != nil {
		return fmt.Errorf("agent: %s is damaged (remove it to enrol again): %w", a.path(identityFile), err)
	}
	if id.Version != identityVersion {
		return fmt.Errorf("agent: %s has version %d, this program reads version %d", a.path(identityFile), id.Version, identityVersion)
	}
	a.identity = id

	raw, err = os.ReadFile(a.path(desiredFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("agent: read desired state: %w", err)
	}
	d := &dxpuv1.DesiredState{}
	if err := proto.Unmarshal(raw, d); err != nil {
		return fmt.Errorf("agent: %s is damaged (remove it to start with nothing attached): %w", a.path(desiredFile), err)
	}
	if d.ClusterId == id.ClusterID && d.NodeId == id.NodeID {
		a.applied = d
		a.known.Store(d.Revision)
	}
	return nil
}

func (a *Agent) saveIdentity(id identity) error {
	if a.cfg.StateDir == "" {
		return nil
	}
	raw, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("agent: encode identity: %w", err)
	}
	return replaceFile(a.path(identityFile), raw)
}

func (a *Agent) saveDesired(d *dxpuv1.DesiredState) error {
	if a.cfg.StateDir == "" {
		return nil
	}
	raw, err := proto.Marshal(d)
	if err != nil {
		return fmt.Errorf("agent: encode desired state: %w", err)
	}
	return replaceFile(a.path(desiredFile), raw)
}

// replaceFile replaces a file atomically: after a crash the old or the new content
// is there. It writes a temporary file, syncs, renames, and syncs the directory.
func replaceFile(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return fmt.Errorf("agent: save: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("agent: save %s: %w", path, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}
