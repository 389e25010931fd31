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

// identityVersion is the version of the identity record. A record of another
// version is refused, since a node without its credential must not guess.
const identityVersion = 1

// identity is what enrolment gave, as it is kept on disk.
type identity struct {
	Version    int    `json:"version"`
	ClusterID  string `json:"cluster_id"`
	NodeID     string `json:"node_id"`
	NodeNumber uint32 `json:"node_number"`
	Credential string `json:"credential"`
	// Certificate proves who the node is where the manager has TLS; Key is its
	// key and CA the manager's authority, all in PEM.
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
	CA          string `json:"ca,omitempty"`
	// HeartbeatMS is the heartbeat interval that the manager asked for.
	HeartbeatMS int64 `json:"heartbeat_ms"`
}

func newInstanceID() string { return rand.Text()[:12] }

// load reads what an earlier run left. A desired state that cannot be read is
// an error too: going on without it would tear down every binding.
func (c *Client) load() error {
	if c.cfg.StateDir == "" {
		return nil
	}
	raw, err := os.ReadFile(c.path(identityFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("node: read identity: %w", err)
	}
	var id identity
	if err := json.Unmarshal(raw, &id); err != nil {
		return fmt.Errorf("node: %s is damaged (remove it to enrol again): %w", c.path(identityFile), err)
	}
	if id.Version != identityVersion {
		return fmt.Errorf("node: %s has version %d, this program knows %d", c.path(identityFile), id.Version, identityVersion)
	}
	c.identity = id

	raw, err = os.ReadFile(c.path(desiredFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("node: read desired state: %w", err)
	}
	d := &dxpuv1.DesiredState{}
	if err := proto.Unmarshal(raw, d); err != nil {
		return fmt.Errorf("node: %s is damaged (remove it to start with nothing attached): %w", c.path(desiredFile), err)
	}
	if d.ClusterId == id.ClusterID && d.NodeId == id.NodeID {
		c.applied = d
		c.known.Store(d.Revision)
	}
	return nil
}

func (c *Client) saveIdentity(id identity) error {
	if c.cfg.StateDir == "" {
		return nil
	}
	raw, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("node: encode identity: %w", err)
	}
	return replaceFile(c.path(identityFile), raw)
}

func (c *Client) saveDesired(d *dxpuv1.DesiredState) error {
	if c.cfg.StateDir == "" {
		return nil
	}
	raw, err := proto.Marshal(d)
	if err != nil {
		return fmt.Errorf("node: encode desired state: %w", err)
	}
	return replaceFile(c.path(desiredFile), raw)
}

// replaceFile writes a file so that a crash leaves the old or the new one:
// temporary file, sync, rename, sync of the directory.
func replaceFile(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return fmt.Errorf("node: save: %w", err)
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
		return fmt.Errorf("node: save %s: %w", path, err)
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
