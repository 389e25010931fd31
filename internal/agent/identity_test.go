package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
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
		both.Go(func() {
			if err := a.noteLocalPeers(); err != nil {
				t.Error(err)
			}
		})
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
