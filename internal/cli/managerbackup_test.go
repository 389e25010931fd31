package cli

import (
	"bytes"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/dxpu-project/dxpu/internal/pool/backup"
)

// A backup is restored into an existing cluster, below an unused prefix.
func TestRestoreIntoCluster(t *testing.T) {
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = t.TempDir(), "fatal"
	cfg.ListenPeerUrls, cfg.ListenClientUrls = nil, []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()

	var file bytes.Buffer
	if err := backup.Write(&file, backup.Header{ClusterID: "c-1"}, map[string][]byte{"meta": []byte(`{"cluster_id":"c-1"}`)}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "pool.backup")
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, prefix string
		code         int
		want         string
	}{
		{"no state", "/one/", exitOK, "restored 1 records of pool c-1"},
		{"existing state", "/one/", exitFailure, "a state exists below /one/"},
		{"existing state, beside those of other pools", "/one", exitFailure, "etcdctl del --prefix /one/\n"},
		{"another prefix", "/two/", exitOK, "restored 1 records of pool c-1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			code := Main([]string{"manager", "restore", path, "--etcd-endpoints", "http://" + e.Clients[0].Addr().String(), "--etcd-prefix", tt.prefix},
				strings.NewReader(""), &out, &out)
			if code != tt.code || !strings.Contains(out.String(), tt.want) {
				t.Errorf("%d: %s", code, out.String())
			}
		})
	}
}
