package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// A report and a renewal change the identity at the same time: both changes stay, here and for the next start.
func TestChangesOfTheIdentity(t *testing.T) {
	for i := range 50 {
		a, err := New(Config{Manager: "http://127.0.0.1:1", JoinToken: "t", Kind: dxpuv1.NodeKind_NODE_KIND_HOST, Name: "h", StateDir: t.TempDir()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		node := fmt.Sprint("node-", i)
		var both sync.WaitGroup
		both.Go(a.noteLocalPeers)
		both.Go(func() {
			if err := a.keep(func(id *identity) { id.NodeID = node }); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		raw, err := os.ReadFile(a.path(identityFile))
		if err != nil {
			t.Fatal(err)
		}
		var stored identity
		if err := json.Unmarshal(raw, &stored); err != nil {
			t.Fatal(err)
		}
		if now, _ := a.current(); now != stored || !now.LocalPeers || now.NodeID != node {
			t.Fatalf("in use %+v, stored %+v", now, stored)
		}
	}
}

// A node does not speak in the name of another one, whose state directory it was given. A
// machine whose name has changed goes on as the node that it was.
func TestStateDirectoryOfAnotherNode(t *testing.T) {
	const host, box = dxpuv1.NodeKind_NODE_KIND_HOST, dxpuv1.NodeKind_NODE_KIND_BOX
	for _, tt := range []struct {
		name   string
		kind   dxpuv1.NodeKind
		given  bool
		record string // its kind
		want   string // the other node; "": none
	}{
		{"h1", host, true, "host", ""},
		{"h1", box, true, "host", "host h1"},
		{"h1", box, true, "", ""}, // of a version without kinds
		{"h2", host, true, "host", "host h1"},
		{"h2", host, false, "host", ""},
		{"h2", host, true, "", "node h1"},
	} {
		dir := t.TempDir()
		raw, err := json.Marshal(identity{Version: identityVersion, NodeID: "h1", Kind: tt.record, Credential: "c"})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, identityFile), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = New(Config{Manager: "http://127.0.0.1:1", Kind: tt.kind, Name: tt.name, NameGiven: tt.given, StateDir: dir}, nil)
		var other *OtherNodeError
		if got := errors.As(err, &other); got != (tt.want != "") || !got && err != nil || got && other.Node != tt.want {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// A state directory that cannot be read may have an identity: the reason is a better answer
// than the demand for a join token.
func TestEnrolledUnreadable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if Enrolled(filepath.Dir(file)) || !Enrolled(filepath.Join(file, "dir")) {
		t.Error("want true only for what cannot be read")
	}
}

// No certificate is asked for that could not be kept: the manager would issue one after the other.
func TestNoRenewalThatCannotBeKept(t *testing.T) {
	var calls atomic.Int32
	manager := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	defer manager.Close()
	a, err := New(Config{Manager: manager.URL, JoinToken: "t", Kind: dxpuv1.NodeKind_NODE_KIND_HOST, Name: "h", StateDir: t.TempDir()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.renew(t.Context()); err == nil || calls.Load() != 1 {
		t.Fatalf("%d calls: %v", calls.Load(), err)
	}
	// A full directory in the file's place cannot be replaced, by root neither.
	if err := os.RemoveAll(a.path(identityFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(a.path(identityFile), "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := a.renew(t.Context()); err == nil || calls.Load() != 1 {
		t.Errorf("%d calls, the last one for a certificate that cannot be kept: %v", calls.Load(), err)
	}
}

// A node that starts removes the temporary files of a killed process of it.
func TestRestsOfAKilledNode(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".node.json-1", ".desired.pb-22"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("a key"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := New(Config{Manager: "http://127.0.0.1:1", JoinToken: "t", Kind: dxpuv1.NodeKind_NODE_KIND_HOST, Name: "h", StateDir: dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*-*")); err != nil || len(left) > 0 {
		t.Errorf("%q are left, %v", left, err)
	}
}
