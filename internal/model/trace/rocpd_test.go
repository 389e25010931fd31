package trace

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRocpd(t *testing.T) {
	w, err := Open("testdata/rocpd.sqlite", Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"call hipMemcpyAsync 0s+6µs copy",
		"call hipLaunchKernel 7µs+5µs launch",
		"call hipGraphLaunch 14µs+4µs graph launch",
		"call hipMemcpyAsync 19µs+5µs copy",
		"call hipStreamSynchronize 25µs+65µs stream sync",
		"op copy HtoD 8µs+6µs copy HtoD call 0 stream 2.0 bytes 65536",
		"op gemm(float*) 15µs+30µs kernel call 1 stream 2.0 bytes 0",
		"op _Z4bias 46µs+4µs graph kernel call 2 stream 2.0 bytes 0",
		"op gemm(float*) 51µs+10µs graph kernel call 2 stream 2.0 bytes 0",
		"op copy DtoH 62µs+4µs copy DtoH call 3 stream 2.0 bytes 4096",
		"op copy PtoP 67µs+2µs copy PtoP call 3 stream 3.0 bytes 8192",
	}
	if d := cmp.Diff(want, describe(w)); d != "" {
		t.Error(d)
	}
	if w.Format != "rocpd" || w.Report.Dropped() != 0 || w.Report.Orphans != 0 || !cmp.Equal(w.Devices, []string{"Test MI300X", "gfx942"}) || w.Threads[0].ID != 78 {
		t.Errorf("%s %v %v, %+v", w.Format, w.Devices, w.Threads, w.Report)
	}
}

// Databases of several runs, and those with the times in a table of their own, are refused.
func TestRocpdThatIsNotRead(t *testing.T) {
	program, err := exec.LookPath("sqlite3")
	if err != nil {
		t.Skip("sqlite3 is not installed")
	}
	whole, err := os.ReadFile("testdata/rocpd.sqlite")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ sql, want string }{
		"two runs":       {"CREATE TABLE rocpd_kernel_dispatch_2 (id INTEGER)", "holds 2 runs"},
		"another layout": {"DROP TABLE rocpd_kernel_dispatch_0198aa_7f; CREATE TABLE rocpd_kernel_dispatch_0198aa_7f (id INTEGER, track_id INTEGER, start_id INTEGER, end_id INTEGER)", "has no column start: the form of this database is not supported"},
		"no stacks":      {"UPDATE rocpd_event_0198aa_7f SET stack_id = NULL", ""},
	} {
		t.Run(name, func(t *testing.T) {
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
			case tc.want == "" && (err != nil || w.Report.Uncorrelated != int64(len(w.Ops))):
				t.Errorf("%v, %+v", err, w)
			}
		})
	}
}
