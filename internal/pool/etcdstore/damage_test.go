package etcdstore

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A manager whose files are damaged says so and names the remedy, without a stack trace.
func TestDamagedFiles(t *testing.T) {
	for _, tt := range []struct{ name, pattern string }{
		{"database", "etcd/member/snap/db"},
		{"write-ahead log", "etcd/member/wal/*-*.wal"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := Open(t.Context(), Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			lead(t, s)
			if err := s.Commit(t.Context(), record("1"), nil); err != nil {
				t.Fatal(err)
			}
			closeStore(t, s)
			files, err := filepath.Glob(filepath.Join(dir, tt.pattern))
			if err != nil || len(files) == 0 {
				t.Fatalf("%s: %v", tt.pattern, err)
			}
			f, err := os.OpenFile(files[0], os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(bytes.Repeat([]byte{0x55}, 64<<10), 64); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			s, err = Open(t.Context(), Options{Dir: dir})
			if err == nil {
				closeStore(t, s)
				t.Fatal("the damage was not noticed")
			}
			for _, want := range []string{dir, "is damaged", "--restore"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q: %v", want, err)
				}
			}
			if strings.Contains(err.Error(), "goroutine ") {
				t.Errorf("the error has a stack trace: %v", err)
			}
		})
	}
}
