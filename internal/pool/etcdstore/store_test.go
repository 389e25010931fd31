package etcdstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
)

var _ manager.Cluster = (*Store)(nil)

var _ manager.Batcher = (*Store)(nil)

// open opens a store that closes with the test.
func open(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeStore(t, s) })
	return s
}

func closeStore(t *testing.T, s *Store) {
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
func lead(t *testing.T, s *Store) (<-chan struct{}, map[string][]byte) {
	t.Helper()
	lost, err := s.Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	records, err := s.Load(t.Context())
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

func TestStateOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), record("0"), nil); !errors.Is(err, ErrDeposed) || s.Valid() {
		t.Errorf("before the election: %v", err)
	}
	if _, records := lead(t, s); len(records) != 0 || !s.Valid() {
		t.Errorf("a new store contains %s", text(records))
	}
	for _, v := range []string{"1", "2", "3"} {
		if err := s.Commit(t.Context(), record(v), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Commit(t.Context(), record("4"), []string{"lease/2", "lease/none"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "another manager uses the data directory") {
		t.Errorf("Open on a directory in use: %v", err)
	}
	closeStore(t, s)

	s = open(t, Options{Dir: dir})
	began := time.Now()
	_, records := lead(t, s)
	if got := text(records); got != "lease/1=1 lease/3=3 lease/4=4" {
		t.Errorf("after a restart: %s", got)
	}
	t.Logf("led %v after the start", time.Since(began))
}

// TestRestartAfterKill checks that a manager does not wait for its own lease after it
// was killed.
func TestRestartAfterKill(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir(), TTL: time.Minute})
	lead(t, s)
	began := time.Now()
	lead(t, s) // another process would not have resigned either
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("it took %v", d)
	}
}

// awaitManagers waits until n managers are in the election, and reads their list.
func awaitManagers(t *testing.T, s *Store, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	news := s.Client().Watch(ctx, s.key("election/"), clientv3.WithPrefix(), clientv3.WithRev(1))
	for seen := map[string]bool{}; len(seen) < n; {
		change, ok := <-news
		if !ok || change.Err() != nil {
			t.Fatalf("%d managers in the election, want %d: %v", len(seen), n, change.Err())
		}
		for _, e := range change.Events {
			if e.Type == clientv3.EventTypePut {
				seen[string(e.Kv.Key)] = true
			} else {
				delete(seen, string(e.Kv.Key))
			}
		}
	}
	s.readManagers(ctx)
}

// TestFencing checks that of two managers one leads, that the other takes over, and
// that the first one cannot write afterwards.
func TestFencing(t *testing.T) {
	at := external(t)
	first := open(t, Options{Endpoints: []string{at}, Self: &dxpuv1.ManagerInfo{Id: "m1", Url: "http://m1"}})
	second := open(t, Options{Endpoints: []string{at}, Self: &dxpuv1.ManagerInfo{Id: "m2", Url: "http://m2"}})
	lost, _ := lead(t, first)
	if err := first.Commit(t.Context(), record("1"), nil); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	campaign := make(chan error, 1)
	wg.Go(func() {
		_, err := second.Campaign(ctx)
		campaign <- err
	})
	defer wg.Wait()
	defer cancel()
	awaitManagers(t, second, 2)
	if m := second.Managers(); m[0].Id != "m1" || !m[0].Leader || m[1].Url != "http://m2" || m[1].Leader {
		t.Errorf("managers: %v", m)
	}

	// The first one is frozen: its lease ends, but it does not notice.
	frozen := first.term.Load()
	if _, err := second.Client().Revoke(t.Context(), frozen.session.Lease()); err != nil {
		t.Fatal(err)
	}
	if err := <-campaign; err != nil {
		t.Fatal(err)
	}
	blind := &term{key: frozen.key, revision: frozen.revision, session: frozen.session, lost: make(chan struct{})}
	first.term.Store(blind)
	if err := first.Commit(t.Context(), record("stale"), nil); !errors.Is(err, ErrDeposed) || !blind.isLost() {
		t.Errorf("a write of a deposed leader: %v", err)
	}
	first.term.Store(frozen)
	<-lost

	records, err := second.Load(t.Context())
	if err != nil || text(records) != "lease/1=1" {
		t.Errorf("the second one loads %s, %v", text(records), err)
	}
	if first.Valid() || !second.Valid() {
		t.Error("the deposed leader is valid, or the new one is not")
	}
}

// TestLateWriteIsFenced checks that a write which timed out, and arrives after the
// state was loaded again, fails.
func TestLateWriteIsFenced(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	lead(t, s)
	late := s.leadingUnchanged()
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	res, err := s.Client().Txn(t.Context()).If(late...).Then(s.ops(record("late"), nil)...).Commit()
	if err != nil || res.Succeeded {
		t.Errorf("the late write: %v, %v", res, err)
	}
	// If it arrived before, the next write fails, once.
	if _, err := s.Client().Put(t.Context(), s.key("guard"), "somebody"); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), record("1"), nil); err == nil || errors.Is(err, ErrDeposed) {
		t.Errorf("a write to a state that has changed: %v", err)
	}
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), record("1"), nil); err != nil {
		t.Error(err)
	}
}

// TestLargeChangeIsAtomic checks that a change too large for one transaction is
// atomic, wherever a crash interrupts it.
func TestLargeChangeIsAtomic(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	lead(t, s)
	s.maxOps, s.maxBytes = 10, 1<<10
	if err := s.Commit(t.Context(), map[string][]byte{"lease/old": []byte("old")}, nil); err != nil {
		t.Fatal(err)
	}
	put := map[string][]byte{}
	for i := range 35 {
		put[fmt.Sprintf("lease/%02d", i)] = bytes.Repeat([]byte{byte('a' + i%26)}, 100)
	}
	conn := &flaky{KV: s.client.KV}
	s.client.KV = conn
	happened := false
	for n := 0; ; n++ { // crash after n writes
		conn.left = n
		err := s.Commit(t.Context(), put, []string{"lease/old"})
		conn.left = -1
		records, lerr := s.Load(t.Context())
		if lerr != nil {
			t.Fatal(lerr)
		}
		switch _, old := records["lease/old"]; {
		case old && len(records) == 1 && err != nil && !happened:
		case !old && len(records) == 35:
			happened = true
		default:
			t.Fatalf("after %d writes (%v): %d records", n, err, len(records))
		}
		if left, lerr := s.list(t.Context(), s.key("journal/")); lerr != nil || len(left) != 0 {
			t.Fatalf("journal after %d writes: %d pieces, %v", n, len(left), lerr)
		}
		if err == nil {
			break
		}
		if happened { // restore the old state
			if err := s.Commit(t.Context(), map[string][]byte{"lease/old": nil}, nil); err != nil {
				t.Fatal(err)
			}
			for k := range put {
				if err := s.Commit(t.Context(), nil, []string{k}); err != nil {
					t.Fatal(err)
				}
			}
			happened = false
		}
	}
}

// Commit refuses a record that etcd does not take before it writes anything, alone and
// in a change that goes through the journal.
func TestTooLargeRecord(t *testing.T) {
	for name, o := range map[string]Options{"embedded": {Dir: t.TempDir()}, "external": {Endpoints: []string{external(t)}}} {
		t.Run(name, func(t *testing.T) {
			s := open(t, o)
			lead(t, s)
			largest := bytes.Repeat([]byte("x"), s.maxRecord)
			if err := s.Commit(t.Context(), map[string][]byte{"lease/l-1": largest}, nil); err != nil {
				t.Errorf("the largest record: %v", err)
			}
			if err := s.Commit(t.Context(), map[string][]byte{"lease/l-2": largest, "lease/l-3": largest, "node/a": []byte("a")}, nil); err != nil {
				t.Errorf("several of the largest records: %v", err)
			}
			for _, others := range []int{0, 2 * s.maxOps} {
				put := map[string][]byte{"lease/l-7": append(largest, 'x')}
				for i := range others {
					put[fmt.Sprint("node/", i)] = []byte("x")
				}
				err := s.Commit(t.Context(), put, nil)
				var large *TooLargeError
				if !errors.As(err, &large) || large.Key != "lease/l-7" || large.Size != s.maxRecord+1 || large.Limit != s.maxRecord {
					t.Errorf("with %d others: %v", others, err)
				}
			}
			if left, err := s.list(t.Context(), s.key("journal/")); err != nil || len(left) != 0 {
				t.Errorf("the journal has %d pieces, %v", len(left), err)
			}
			records, err := s.Load(t.Context())
			if err != nil || len(records) != 4 || records["lease/l-7"] != nil {
				t.Errorf("%d records are stored, %v", len(records), err)
			}
		})
	}
}

// The journal of an earlier version may hold a record that is too large to store. The
// leader logs which one, leaves it out, and leads.
func TestJournalWithTooLargeRecord(t *testing.T) {
	var log bytes.Buffer
	s := open(t, Options{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))})
	lead(t, s)
	limit := s.maxRecord
	s.maxRecord = math.MaxInt
	err := s.Commit(t.Context(), map[string][]byte{"meta": []byte("m"), "lease/l-6": []byte("6"), "lease/l-7": bytes.Repeat([]byte("x"), 2*embeddedRequest)}, nil)
	if err == nil {
		t.Fatal("a record of 18 MiB was stored")
	}
	s.maxRecord = limit
	records, err := s.Load(t.Context())
	if err != nil || text(records) != "lease/l-6=6 meta=m" {
		t.Errorf("%.200s, %v", text(records), err)
	}
	if left, err := s.list(t.Context(), s.key("journal/")); err != nil || len(left) != 0 {
		t.Errorf("the journal has %d pieces, %v", len(left), err)
	}
	if want := fmt.Sprintf("record=lease/l-7 bytes=%d limit=%d", 2*embeddedRequest, limit); !strings.Contains(log.String(), want) {
		t.Errorf("the log does not say %q:\n%s", want, log.String())
	}
	if err := s.Commit(t.Context(), record("l-8"), nil); err != nil {
		t.Error(err)
	}
}

// flaky is a client whose connection fails after some transactions.
type flaky struct {
	clientv3.KV
	left int // negative: does not fail
}

func (f *flaky) Txn(ctx context.Context) clientv3.Txn {
	if f.left == 0 {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return f.KV.Txn(ctx)
	}
	f.left--
	return f.KV.Txn(ctx)
}

// TestQuota checks that the history does not fill the quota, and that writes beyond
// it are refused until there is room again.
func TestQuota(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir(), Quota: 20 << 20})
	lead(t, s)
	value := bytes.Repeat([]byte("x"), 2<<20)
	for i := range 30 { // 60 MiB of history
		if err := s.Commit(t.Context(), map[string][]byte{"lease/1": value}, nil); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	var err error
	i := 0
	for ; err == nil && i < 30; i++ {
		err = s.Commit(t.Context(), map[string][]byte{fmt.Sprint("lease/", i): value}, nil)
	}
	if err == nil || !strings.Contains(err.Error(), "--etcd-quota") {
		t.Fatalf("after %d records of 2 MiB: %v", i, err)
	}
	for ; i > 0; i-- { // make room
		if _, err := s.Client().Delete(t.Context(), s.stateKey(fmt.Sprint("lease/", i))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatalf("after room was made: %v", err)
	}
	if err := s.Commit(t.Context(), record("1"), nil); err != nil {
		t.Error(err)
	}
}

func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	lead(t, s)
	s.opts.MinFree = 1 << 62
	if err := s.Commit(t.Context(), record("1"), nil); err == nil || !strings.Contains(err.Error(), "the disk is full: "+dir) {
		t.Errorf("got %v", err)
	}
	s.opts.MinFree = 1
	if err := s.Commit(t.Context(), record("1"), nil); err != nil {
		t.Error(err)
	}
}

// TestFullDiskEndsTheTerm checks that of several managers one with a full disk lets
// another lead.
func TestFullDiskEndsTheTerm(t *testing.T) {
	peer := fmt.Sprintf("http://127.88.%d.%d:2380", rand.N(256), 1+rand.N(254)) // not used by other tests
	s := open(t, Options{Dir: t.TempDir(), Name: "m1", PeerListen: peer, InitialCluster: "m1=" + peer})
	lost, _ := lead(t, s)
	s.opts.MinFree = 1 << 62
	if err := s.Commit(t.Context(), record("1"), nil); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("got %v", err)
	}
	<-lost
	if s.Valid() {
		t.Error("a manager with a full disk still leads")
	}
	if _, err := s.Campaign(t.Context()); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("a manager with a full disk campaigns: %v", err)
	}
	if err := s.Resign(t.Context()); err != nil {
		t.Error(err)
	}
	s.opts.MinFree = 1
	lead(t, s)
	if err := s.Commit(t.Context(), record("1"), nil); err != nil {
		t.Error(err)
	}
}

// TestInitial checks that an empty store takes the initial state, once.
func TestInitial(t *testing.T) {
	dir := t.TempDir()
	calls := 0
	o := Options{Dir: dir, Initial: func() (map[string][]byte, error) { calls++; return record("restored"), nil }}
	for _, name := range []string{"empty", "with a state"} {
		t.Run(name, func(t *testing.T) {
			if _, records := lead(t, open(t, o)); text(records) != text(record("restored")) {
				t.Errorf("got %s", text(records))
			}
		})
	}
	if calls != 1 {
		t.Errorf("Initial was called %d times", calls)
	}
	s := open(t, Options{Dir: t.TempDir(), Initial: func() (map[string][]byte, error) { return nil, errors.New("no backup") }})
	if _, err := s.Campaign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "no backup") {
		t.Errorf("got %v", err)
	}
}

func TestMigration(t *testing.T) {
	tests := []struct{ name, file, want string }{
		{"of the previous version", `{"version":1,"records":{"meta":{"cluster_id":"c-1"},"lease/l-1":{"id":"l-1"}}}`, `lease/l-1={"id":"l-1"} meta={"cluster_id":"c-1"}`},
		{"empty", `{"version":1}`, ""},
		{"of a later version", `{"version":2}`, "error: etcdstore: FILE has version 2, this program knows 1"},
		{"damaged", `{`, "error: etcdstore: FILE is damaged: restore it from a backup"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "pool.json")
			if err := os.WriteFile(file, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			s := open(t, Options{Dir: dir, Legacy: file})
			if _, err := s.Campaign(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time from etcd
				records, err := s.Load(t.Context())
				got := text(records)
				if err != nil {
					got = "error: " + strings.ReplaceAll(err.Error(), file, "FILE")
				}
				if !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
					t.Errorf("got %s, want %s", got, tt.want)
				}
			}
			_, err := os.Stat(file)
			if failed := strings.HasPrefix(tt.want, "error"); failed != (err == nil) {
				t.Errorf("the file: %v", err)
			}
		})
	}
}
