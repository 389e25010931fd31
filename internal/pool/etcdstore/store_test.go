package etcdstore

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/pool/manager"
)

var _ manager.Cluster = (*Store)(nil)

var _ manager.Batcher = (*Store)(nil)

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
	if _, err := Open(t.Context(), Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), ": another manager uses it") {
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
	if _, err := s.Load(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "no backup") {
		t.Errorf("got %v", err)
	}
}

// BenchmarkTakeover measures a manager that becomes the leader of an etcd with the records
// of 50,000 leases of two GPUs: from the election until it has read them.
func BenchmarkTakeover(b *testing.B) {
	s := open(b, Options{Dir: b.TempDir()})
	lead(b, s)
	value := bytes.Repeat([]byte("x"), 900) // a binding's record has 700 to 1,000 bytes
	for i := 0; i < 150_000; i += s.MaxRecords() {
		put := map[string][]byte{}
		for j := range s.MaxRecords() {
			put[fmt.Sprintf("binding/b-%07d", i+j)] = value
		}
		if err := s.Commit(b.Context(), put, nil); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if records, err := s.Load(b.Context(), ""); err != nil || len(records) < 150_000 {
			b.Fatal(len(records), err)
		}
	}
}
