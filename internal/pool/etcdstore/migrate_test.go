package etcdstore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
				records, err := s.Load(t.Context(), "")
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
