package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/atomicfile"
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

// load reads the files of an earlier run. A desired state that cannot be read is
// an error, because a start without it would end every binding.
func (a *Agent) load() error {
	raw, err := a.readState(identityFile)
	if err != nil || raw == nil {
		return err
	}
	var id identity
	if err := json.Unmarshal(raw, &id); err != nil {
		return fmt.Errorf("agent: %s is damaged (remove it to enrol again): %w", a.path(identityFile), err)
	}
	if id.Version != identityVersion {
		return fmt.Errorf("agent: %s has version %d, this program reads version %d", a.path(identityFile), id.Version, identityVersion)
	}
	a.identity = id
	if raw, err = a.readState(desiredFile); err != nil || raw == nil {
		return err
	}
	d := &dxpuv1.DesiredState{}
	if err := proto.Unmarshal(raw, d); err != nil {
		return fmt.Errorf("agent: %s is damaged (remove it to start with nothing attached): %w", a.path(desiredFile), err)
	}
	if id.owns(d) {
		a.applied = d
		a.known.Store(d.Revision)
	}
	return nil
}

// owns reports whether a desired state is that of the node. nil is not.
func (id *identity) owns(d *dxpuv1.DesiredState) bool {
	return d != nil && d.ClusterId == id.ClusterID && d.NodeId == id.NodeID
}

// readState reads a file of the state directory. It returns nil if the file does not
// exist or nothing is kept.
func (a *Agent) readState(name string) ([]byte, error) {
	if a.cfg.StateDir == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(a.path(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("agent: read state: %w", err)
	}
	return raw, nil
}

// saveState replaces a file of the state directory by the encoded data. err is the error
// of the encoder.
func (a *Agent) saveState(name string, data []byte, err error) error {
	if err == nil && a.cfg.StateDir != "" {
		err = atomicfile.Write(a.path(name), data)
	}
	if err != nil {
		return fmt.Errorf("agent: save %s: %w", a.path(name), err)
	}
	return nil
}

func (a *Agent) saveIdentity(id identity) error {
	raw, err := json.MarshalIndent(id, "", "  ")
	return a.saveState(identityFile, raw, err)
}

func (a *Agent) saveDesired(d *dxpuv1.DesiredState) error {
	raw, err := proto.Marshal(d)
	return a.saveState(desiredFile, raw, err)
}
