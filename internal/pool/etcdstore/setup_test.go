package etcdstore

import (
	"context"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// open opens a store that closes with the test.
func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeStore(t, s) })
	return s
}

func closeStore(t testing.TB, s *Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Resign(ctx); err != nil {
		t.Logf("resign: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// lead makes a store the leader and loads the state.
func lead(t testing.TB, s *Store) (<-chan struct{}, map[string][]byte) {
	t.Helper()
	lost, err := s.Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	records, err := s.Load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return lost, records
}

func record(v string) map[string][]byte { return map[string][]byte{"lease/" + v: []byte(v)} }

func text(records map[string][]byte) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(records)) {
		out = append(out, k+"="+string(records[k]))
	}
	return strings.Join(out, " ")
}

// external starts an etcd with a port for clients, and returns its URL.
func external(t *testing.T) string {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.Name = t.TempDir(), "external"
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapTo(slog.New(slog.DiscardHandler), zap.ErrorLevel))
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:1"}
	client := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{peer}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	cfg.TickMs, cfg.ElectionMs = 20, 200
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	return e.Clients[0].Addr().String()
}
