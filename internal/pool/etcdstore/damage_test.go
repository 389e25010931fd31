package etcdstore

import (
	"bytes"
	"errors"
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

// An error of the configuration or of the system is not called damage: an operator who
// moved the directory away would lose the state.
func TestOtherErrorsAreNoDamage(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	lead(t, s)
	closeStore(t, s)
	missing := filepath.Join(dir, "no-such-file")
	for name, o := range map[string]Options{
		"certificate": {Dir: dir, Name: "m1", InitialCluster: "m1=https://127.0.0.1:0", CAFile: missing, CertFile: missing, KeyFile: missing},
		"address":     {Dir: dir, Name: "m1", InitialCluster: "m1=http://127.0.0.1:0", PeerListen: "http://192.0.2.1:0"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(t.Context(), o)
			if err == nil {
				closeStore(t, s)
				t.Fatal("no error")
			}
			if strings.Contains(err.Error(), "damaged") || strings.Contains(err.Error(), "--restore") {
				t.Errorf("called damage: %v", err)
			}
		})
	}
}

// A damaged member of a cluster is not restored alone, beside the others.
func TestRemedyOfAMember(t *testing.T) {
	damage := &damagedError{errors.New("crc")}
	s := &Store{opts: Options{Dir: "/data", InitialCluster: "m1=http://a,m2=http://b,m3=http://c"}}
	if got := s.withRemedy(damage).Error(); !strings.Contains(got, "/data is damaged") || !strings.Contains(got, "dxpu manager replace-member") {
		t.Error(got)
	}
}
