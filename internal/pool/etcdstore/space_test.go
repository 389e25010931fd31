package etcdstore

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

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
	if _, err := s.Load(t.Context(), ""); err != nil {
		t.Fatalf("after room was made: %v", err)
	}
	if err := s.Commit(t.Context(), record("1"), nil); err != nil {
		t.Error(err)
	}
}

// A manager that does not start says that it wants to be started again.
func TestDiskFullAtTheStart(t *testing.T) {
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), MinFree: 1 << 62})
	if err == nil {
		_ = s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "the disk is full: ") || !strings.HasSuffix(err.Error(), "then start the manager again") {
		t.Errorf("got %v", err)
	}
}

func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	lead(t, s)
	s.opts.MinFree = 1 << 62
	err := s.Commit(t.Context(), record("1"), nil)
	if err == nil || !strings.Contains(err.Error(), "the disk is full: "+dir) {
		t.Errorf("got %v", err)
	}
	var nothing interface{ NothingStored() bool }
	if !errors.As(err, &nothing) || !nothing.NothingStored() {
		t.Errorf("the error does not say that nothing was stored: %#v", err)
	}
	s.opts.MinFree = 1
	if err := s.Commit(t.Context(), record("1"), nil); err != nil {
		t.Error(err)
	}
}
