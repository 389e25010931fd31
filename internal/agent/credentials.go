package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/client"
	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/dirlock"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// Files of the state directory. Both hold secrets and have mode 0600.
const (
	identityFile = "node.json"
	desiredFile  = "desired.pb"
)

// lockFile is the lock of the state directory. A manager of this machine may have the same
// directory for its data, which it locks by another file.
const lockFile = "node.lock"

// identityVersion is the version of the identity record. A record with another
// version is refused: without its credential the node would enrol as a new one.
const identityVersion = 1

// identity is the result of enrolment, as it is kept on disk.
type identity struct {
	Version    int    `json:"version"`
	ClusterID  string `json:"cluster_id"`
	NodeID     string `json:"node_id"`
	NodeNumber uint32 `json:"node_number"`
	// Kind is "host" or "box"; empty in records of earlier versions.
	Kind       string `json:"kind,omitempty"`
	Credential string `json:"credential"`
	// Certificate identifies the node to a manager with TLS. Key is its private key
	// and CA the manager's authority. All are PEM.
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
	CA          string `json:"ca,omitempty"`
	// HeartbeatMS is the heartbeat interval that the manager asked for, in
	// milliseconds.
	HeartbeatMS int64 `json:"heartbeat_ms"`
	// LocalPeers is set once a manager of the pool has said that it knows them.
	LocalPeers bool `json:"local_peers,omitempty"`
}

// Enrolled reports whether a state directory has the identity of an enrolled node, which
// needs no join token. "" has none. One that cannot be read has: New returns the reason.
func Enrolled(stateDir string) bool {
	if stateDir == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(stateDir, identityFile))
	return !errors.Is(err, fs.ErrNotExist)
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
	if err := a.checkIdentity(&id); err != nil {
		return err
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

// OtherNodeError reports a state directory with the identity of another node.
type OtherNodeError struct {
	Dir  string
	Node string // "host h1"
}

func (e *OtherNodeError) Error() string {
	return fmt.Sprintf("%s has the identity of %s", e.Dir, e.Node)
}

// kindName returns the word for a kind of node in an identity.
func kindName(k dxpuv1.NodeKind) string {
	if k == dxpuv1.NodeKind_NODE_KIND_BOX {
		return "box"
	}
	return "host"
}

// checkIdentity refuses the identity of another node: this one would speak in its name. A
// machine whose name has changed keeps the node that it was, with its bindings.
func (a *Agent) checkIdentity(id *identity) error {
	kind := kindName(a.cfg.Kind)
	if id.Kind != "" && id.Kind != kind || a.cfg.NameGiven && id.NodeID != a.cfg.Name {
		return &OtherNodeError{a.cfg.StateDir, cmp.Or(id.Kind, "node") + " " + id.NodeID}
	}
	if id.NodeID != a.cfg.Name {
		a.log.Warn("the machine has another name than its node in the pool, which keeps its own", "node", id.NodeID, "machine", a.cfg.Name)
	}
	id.Kind = kind
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
		return nil, fmt.Errorf("agent: --state-dir: %w", err)
	}
	return raw, nil
}

// unsavedError reports that a file of the state directory could not be written.
type unsavedError struct{ err error }

func (e *unsavedError) Error() string { return fmt.Sprintf("agent: --state-dir: %v", e.err) }
func (e *unsavedError) Unwrap() error { return e.err }

// saveState replaces a file of the state directory by the encoded data. err is the error
// of the encoder.
func (a *Agent) saveState(name string, data []byte, err error) error {
	if err == nil && a.cfg.StateDir != "" {
		err = atomicfile.Write(a.path(name), data)
	}
	if err != nil {
		return &unsavedError{err}
	}
	if a.unsaved.Swap(false) {
		a.log.Info("the state directory can be written again")
	}
	return nil
}

// lock keeps other processes from the state directory. Two with one identity would take the
// node's bindings from each other. A directory that cannot be written has no lock.
func (a *Agent) lock() error {
	if a.cfg.StateDir == "" {
		return nil
	}
	lock, err := dirlock.Lock(a.cfg.StateDir, lockFile)
	var held *dirlock.HeldError
	switch {
	case errors.As(err, &held):
		return fmt.Errorf("agent: %w", held)
	case err != nil:
		a.log.Warn("the state directory has no lock: another process could use it", "err", err)
	default:
		a.unlock = lock.Close
	}
	return nil
}

// sweep removes what a former process of the node, which was killed, left in the state directory.
func (a *Agent) sweep() {
	if a.cfg.StateDir == "" {
		return
	}
	for _, name := range []string{identityFile, desiredFile} {
		if err := atomicfile.Sweep(a.path(name)); err != nil {
			a.log.Warn("files of a former process are not removed", "err", err)
		}
	}
}

// notSaved writes to the log that an enrolled node cannot save its state, once until it can.
// Its guests keep their GPUs, and each caller tries again.
func (a *Agent) notSaved(err error) {
	if !a.unsaved.Swap(true) {
		a.log.Error("the state directory cannot be written: attached GPUs work on, and what the manager changes waits for it", "err", err)
	}
}

func (a *Agent) saveIdentity(id identity) error {
	raw, err := json.MarshalIndent(id, "", "  ")
	return a.saveState(identityFile, raw, err)
}

func (a *Agent) saveDesired(d *dxpuv1.DesiredState) error {
	raw, err := proto.Marshal(d)
	return a.saveState(desiredFile, raw, err)
}

// maxRenewWait bounds the sleep before a renewal, so that a change of the
// machine's clock is noticed.
const maxRenewWait = time.Hour

// newClient returns a client that sends an identity's credential and shows its
// certificate.
func (a *Agent) newClient(id identity) (*client.Client, error) {
	cfg := client.Config{
		Managers: a.managers, Token: id.Credential, AllowCleartext: true, // a manager without TLS has nodes without
		CA: a.cfg.CA, CAHash: a.cfg.CAHash, ElectionTimeout: reportTimeout,
	}
	if id.CA != "" {
		// The authorities that the manager named last, beside those of the flags: the
		// pool's authority may have been rotated since the node enrolled.
		cfg.CA = append(append(slices.Clone(cfg.CA), '\n'), id.CA...)
	}
	if hc := a.cfg.HTTPClient; hc != nil {
		cfg.Transport = cmp.Or(hc.Transport, http.DefaultTransport)
	}
	cert, _ := tls.X509KeyPair([]byte(id.Certificate), []byte(id.Key)) // without one, Leaf is nil
	cfg.Certificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		// An expired certificate would end the handshake, and the node could not
		// enrol again.
		if cert.Leaf == nil || time.Now().After(cert.Leaf.NotAfter) {
			return &tls.Certificate{}, nil
		}
		return &cert, nil
	}
	return client.New(cfg)
}

// use makes all further requests those of an identity.
func (a *Agent) use(id identity) error {
	c, err := a.newClient(id)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cfg.HTTPClient == nil {
		a.client.Close()
	}
	a.client = c
	return nil
}

// certificateRefused reports whether an error says that the manager does not
// accept the node's certificate. TLS 1.3 reports it after the handshake, as an
// alert.
func certificateRefused(err error) bool {
	return err != nil && strings.Contains(err.Error(), "remote error: tls:") && strings.Contains(err.Error(), "certificate")
}

// newRequest returns a private key and a certificate request, both "" for a
// manager without TLS, which issues no certificates.
func (a *Agent) newRequest() (csr, key string, err error) {
	if a.cfg.HTTPClient != nil || strings.HasPrefix(a.managers[0], "http:") {
		return "", "", nil
	}
	csr, k, err := auth.NewRequest(a.cfg.Name)
	if err != nil {
		return "", "", err
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return "", "", errors.New("agent: the private key cannot be encoded")
	}
	return csr, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), nil
}

// leaf returns an identity's certificate, nil for none.
func (id *identity) leaf() *x509.Certificate {
	block, _ := pem.Decode([]byte(id.Certificate))
	if block == nil {
		return nil
	}
	c, _ := x509.ParseCertificate(block.Bytes) // nil after an error
	return c
}

// renewLoop renews the certificate after two thirds of its lifetime, and when the manager
// asks for it.
func (a *Agent) renewLoop(ctx context.Context) error {
	retry := newBackoff()
	for {
		id, _ := a.current()
		cert := id.leaf()
		if cert == nil {
			return nil // the manager issues none
		}
		if left := time.Until(auth.RenewAt(cert)); left > 0 {
			timer := time.NewTimer(min(left, maxRenewWait))
			asked := false
			select {
			case <-ctx.Done():
				timer.Stop()
				return ctx.Err()
			case <-a.renewNow:
				timer.Stop()
				asked = true
			case <-timer.C:
			}
			if !asked {
				continue
			}
		}
		err := a.renew(ctx)
		if err := a.sessionError(err); err != nil {
			return err
		}
		if err == nil {
			retry.Reset()
			continue
		}
		// A manager that asked for it asks again.
		a.log.Warn("the certificate could not be renewed", "err", err, "expires", cert.NotAfter)
		if !wait(ctx, retry, nil) {
			return ctx.Err()
		}
	}
}

// renewSoon makes renewLoop renew the certificate of an identity, unless the node has
// another one by now: a second renewal would revoke the certificate of connections that
// are still open.
func (a *Agent) renewSoon(id identity) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.identity.Certificate == id.Certificate {
		signal(a.renewNow)
	}
}

func (a *Agent) renew(ctx context.Context) error {
	// Each certificate is a change of the pool's state, and the manager asks again until the node
	// shows the one that it issued. So none is asked for that could not be kept.
	if err := a.saveAgain(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	csr, key, err := a.newRequest()
	if err != nil {
		return err
	}
	id, api := a.current()
	res, err := api.Node.Renew(ctx, connect.NewRequest(&dxpuv1.RenewRequest{NodeId: id.NodeID, CsrPem: csr}))
	if err != nil {
		return err
	}
	err = a.keep(func(id *identity) {
		id.Certificate, id.Key, id.CA = res.Msg.CertificatePem, key, res.Msg.CaPem
	})
	if err != nil {
		return err
	}
	select {
	case <-a.renewNow: // meant for the previous certificate
	default:
	}
	signal(a.rewatch) // on a connection with the new certificate
	id, _ = a.current()
	a.log.Info("renewed the certificate", "node", id.NodeID, "expires", id.leaf().NotAfter)
	return nil
}

// saveAgain saves the identity as it is: an error shows that no other one could be saved.
func (a *Agent) saveAgain() error {
	a.keeping.Lock()
	defer a.keeping.Unlock()
	id, _ := a.current()
	err := a.saveIdentity(id)
	if err != nil {
		a.notSaved(err)
	}
	return err
}

// keep changes the identity, in the state directory and here. Changes come from the reports
// and from renewals, which must not undo each other.
func (a *Agent) keep(change func(*identity)) error {
	a.keeping.Lock()
	defer a.keeping.Unlock()
	before, _ := a.current()
	id := before
	change(&id)
	if id.Certificate != "" {
		if _, err := tls.X509KeyPair([]byte(id.Certificate), []byte(id.Key)); err != nil {
			return errors.New("agent: the manager sent a certificate that does not match the private key")
		}
	}
	if err := a.saveIdentity(id); err != nil {
		if before.NodeID == "" {
			return &fatalError{err} // nothing is attached that the end of the node could harm
		}
		a.notSaved(err)
		return err
	}
	if before.LocalPeers = id.LocalPeers; id != before { // there is another credential
		if err := a.use(id); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.identity, a.refused = id, false
	return nil
}
