package trace

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The three layouts of the database, of the same run.
func TestRocpd(t *testing.T) {
	want := []string{
		"step ProfilerStep#1 0s+92µs",
		"call hipMemcpyAsync 1µs+6µs copy",
		"call hipLaunchKernel 8µs+5µs launch",
		"call hipGraphLaunch 15µs+4µs graph launch",
		"call hipMemcpyAsync 20µs+5µs copy",
		"call hipStreamSynchronize 26µs+65µs stream sync",
		"op copy HtoD 9µs+6µs copy HtoD call 0 stream 2.0 bytes 65536",
		"op gemm(float*) 16µs+30µs kernel call 1 stream 2.0 bytes 0",
		"op _Z4bias 47µs+4µs graph kernel call 2 stream 2.0 bytes 0",
		"op gemm(float*) 52µs+10µs graph kernel call 2 stream 2.0 bytes 0",
		"op copy DtoH 63µs+4µs copy DtoH call 3 stream 2.0 bytes 4096",
		"op copy PtoP 68µs+2µs copy PtoP call 3 stream 3.0 bytes 8192",
	}
	for _, name := range []string{"rocpd", "rocpd40", "rocpd41"} {
		t.Run(name, func(t *testing.T) {
			w, err := Open("testdata/"+name+".sqlite", Options{})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, describe(w)); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff([]string{"aten::mm 7.5µs 5.7µs"}, rangesIn(w)); d != "" {
				t.Error(d)
			}
			if w.Format != "rocpd" || w.Report.Dropped() != 0 || w.Report.Orphans != 0 || !cmp.Equal(w.Devices, []string{"Test MI300X", "gfx942"}) || w.Threads[0].ID != 78 {
				t.Errorf("%s %v %v, %+v", w.Format, w.Devices, w.Threads, w.Report)
			}
		})
	}
}

// Databases of several runs, and of unknown layouts, are refused. Rows whose times or tracks
// are not in the database are dropped.
func TestRocpdThatIsNotRead(t *testing.T) {
	program, err := exec.LookPath("sqlite3")
	if err != nil {
		t.Skip("sqlite3 is not installed")
	}
	const table = "rocpd_kernel_dispatch_0198aa_7f"
	for name, tc := range map[string]struct {
		of, sql, want string
		dropped       int64
	}{
		"two runs":         {of: "rocpd", sql: "CREATE TABLE rocpd_kernel_dispatch_2 (id INTEGER)", want: "holds 2 runs"},
		"another layout":   {of: "rocpd", sql: "DROP TABLE " + table + "; CREATE TABLE " + table + " (id INTEGER, begin INTEGER, done INTEGER)", want: "has no column start: the form of this database is not supported"},
		"no GPU":           {of: "rocpd", sql: "ALTER TABLE " + table + " DROP COLUMN agent_id", want: "has no column agent_id"},
		"no stacks":        {of: "rocpd", sql: "UPDATE rocpd_event_0198aa_7f SET stack_id = NULL"},
		"a missing time":   {of: "rocpd40", sql: "DELETE FROM rocpd_timestamp_0198aa_7f WHERE id = 102", dropped: 1},
		"no table of them": {of: "rocpd40", sql: "DROP TABLE rocpd_timestamp_0198aa_7f", want: "holds no"},
		"a missing track":  {of: "rocpd41", sql: "DELETE FROM rocpd_track_0198aa_7f WHERE id = 3", dropped: 3},
	} {
		t.Run(name, func(t *testing.T) {
			whole, err := os.ReadFile("testdata/" + tc.of + ".sqlite")
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "results.db")
			if err := os.WriteFile(path, whole, 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(program, path, tc.sql).CombinedOutput(); err != nil {
				t.Fatal(err, string(out))
			}
			w, err := Open(path, Options{})
			switch {
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("%v, want %q", err, tc.want)
			case tc.want != "":
			case err != nil || w.Report.Dropped() != tc.dropped || tc.dropped == 0 && w.Report.Uncorrelated != int64(len(w.Ops)):
				t.Errorf("%v, %+v", err, w)
			}
		})
	}
}
