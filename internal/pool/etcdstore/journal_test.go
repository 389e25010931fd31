package etcdstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

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
		records, lerr := s.Load(t.Context(), "")
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
		if left, lerr := s.read(t.Context(), [2]string{s.key("journal/"), s.key("journal0")}); lerr != nil || len(left) != 0 {
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
	// On a busy machine the largest records take longer than the default TTL.
	const ttl = time.Hour
	for name, o := range map[string]Options{"embedded": {Dir: t.TempDir(), TTL: ttl}, "external": {Endpoints: []string{external(t)}, TTL: ttl}} {
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
			if left, err := s.read(t.Context(), [2]string{s.key("journal/"), s.key("journal0")}); err != nil || len(left) != 0 {
				t.Errorf("the journal has %d pieces, %v", len(left), err)
			}
			records, err := s.Load(t.Context(), "")
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
	records, err := s.Load(t.Context(), "")
	if err != nil || text(records) != "lease/l-6=6 meta=m" {
		t.Errorf("%.200s, %v", text(records), err)
	}
	if left, err := s.read(t.Context(), [2]string{s.key("journal/"), s.key("journal0")}); err != nil || len(left) != 0 {
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
