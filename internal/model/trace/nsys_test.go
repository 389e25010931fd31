package trace

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

func TestNsys(t *testing.T) {
	progress := int64(0)
	w, err := Open("testdata/small.sqlite", Options{Progress: func(read, size int64) { progress = read * 100 / size }})
	if err != nil {
		t.Fatal(err)
	}
	if w.Format != "nsys" || len(w.Ops) != 401 || len(w.Calls) != 402 || progress != 100 || w.Devices[0] != "Test H100" {
		t.Errorf("%s, %d operations, %d calls, %d %%, %v", w.Format, len(w.Ops), len(w.Calls), progress, w.Devices)
	}
	if w.Report.Dropped() != 0 || w.Report.Orphans != 0 || w.Report.Skewed != 0 {
		t.Errorf("%+v", w.Report)
	}
	all := describe(w)
	want := []string{
		"step ProfilerStep#1 0s+4ms",
		"step ProfilerStep#2 4ms+4.04ms",
		"call cudaLaunchKernel_v7000 20µs+5µs launch",
		"call cudaStreamSynchronize_v3020 8.013ms+17µs stream sync stream 7",
		"op kernel_1 26µs+4.001µs kernel call 0 stream 0.7 bytes 0",
		"op copy DtoH 8.02ms+5µs copy DtoH call 400 stream 0.7 bytes 65536",
	}
	got := []string{all[0], all[1], all[2], all[2+401], all[2+402], all[len(all)-1]}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if long := all[2+402+49]; !strings.Contains(long, "kernel_50_x<x<") {
		t.Errorf("a name on overflow pages: %.60s", long)
	}
}

// The types of streams, pageable memory and rows of queries.
func TestNsysStreams(t *testing.T) {
	w, err := Open("testdata/streams.sqlite", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]workload.Wait{{Op: 2, On: 0}, {Op: 3, On: 2}}, w.Waits); d != "" {
		t.Error(d)
	}
	if len(w.Streams) != 3 || !w.Ops[4].Pageable || w.Ops[5].Pageable || w.Ops[5].Kind != workload.CopyDtoH {
		t.Errorf("streams %v, copies %+v", w.Streams, w.Ops[4:])
	}
	want := workload.Call{Start: 35 * time.Microsecond, Dur: 4500, Name: w.Calls[4].Name, Stream: workload.None, Event: workload.None, Latest: workload.None, Record: workload.None, Kind: workload.StreamSync}
	if d := cmp.Diff(want, w.Calls[4]); d != "" || w.Names[w.Calls[4].Name] != "cudaEventQuery_v3020" {
		t.Error(d)
	}
	if len(w.Calls) != 7 || w.Ops[4].Call != 5 || w.Report.Orphans != 0 {
		t.Errorf("%d calls, the copy is that of call %d, %+v", len(w.Calls), w.Ops[4].Call, w.Report)
	}
}

func TestCopyKind(t *testing.T) {
	for _, tc := range []struct {
		kind, src, dst int64
		want           workload.OpKind
	}{
		{1, 0, 2, workload.CopyHtoD},
		{1, 1, 2, workload.CopyHtoD},
		{2, 2, 1, workload.CopyDtoH},
		{8, 2, 2, workload.CopyDtoD},
		{8, 1, 2, workload.CopyHtoD},
		{8, 2, 1, workload.CopyDtoH},
		{10, 2, 2, workload.CopyPtoP},
		{13, 4, 4, workload.CopyPtoP},
		{11, 4, 4, workload.CopyHtoD},
		{12, 4, 4, workload.CopyDtoH},
		{9, 1, 1, workload.CopyOther},
		{99, 0, 0, workload.CopyOther},
	} {
		if got := copyKind(tc.kind, tc.src, tc.dst); got != tc.want {
			t.Errorf("kind %d from %d to %d: %v, want %v", tc.kind, tc.src, tc.dst, got, tc.want)
		}
	}
}

func small(tb testing.TB) []byte {
	tb.Helper()
	b, err := os.ReadFile("testdata/small.sqlite")
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func read(b []byte) (*workload.Workload, error) {
	return ReadSQLite(bytes.NewReader(b), int64(len(b)), Options{})
}

func TestDamagedDatabase(t *testing.T) {
	whole := small(t)
	const page = 512
	reported := 0
	for p := 1; p < len(whole)/page; p++ {
		b := bytes.Clone(whole)
		clear(b[p*page : (p+1)*page])
		w, err := read(b)
		if err != nil || w.Report.Dropped() > 0 {
			reported++
		} else if len(w.Ops) != 401 {
			t.Errorf("page %d: %d operations and no report", p, len(w.Ops))
		}
	}
	if reported == 0 {
		t.Error("no damage was reported")
	}
	for n := 0; n < len(whole); n += 777 {
		w, err := read(whole[:n])
		if err == nil && !w.Report.Incomplete {
			t.Errorf("%d of %d bytes: %d operations and no report of the truncation", n, len(whole), len(w.Ops))
		}
	}
}

// Open refuses a database with rows in a write-ahead log or with an interrupted
// transaction.
func TestLogsBesideTheDatabase(t *testing.T) {
	for _, tc := range []struct{ name, suffix, log, fails string }{
		{"log", "-wal", "\x37\x7f\x06\x82", "wal_checkpoint"},
		{"empty log", "-wal", "", ""},
		{"journal", "-journal", journalMagic + "rest", "interrupted"},
		{"committed journal", "-journal", "\x00\x00\x00\x00\x00\x00\x00\x00rest", ""},
		{"empty journal", "-journal", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.sqlite")
			if err := os.WriteFile(path, small(t), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path+tc.suffix, []byte(tc.log), 0o600); err != nil {
				t.Fatal(err)
			}
			switch _, err := Open(path, Options{}); {
			case tc.fails == "" && err != nil:
				t.Error(err)
			case tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails)):
				t.Errorf("error %v, want %q", err, tc.fails)
			}
		})
	}
}

// changed returns what is read of an export that the sqlite3 program has changed.
func changed(t *testing.T, name, sql string) (*workload.Workload, error) {
	t.Helper()
	program, err := exec.LookPath("sqlite3")
	if err != nil {
		t.Skip("sqlite3 is not installed")
	}
	whole, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "changed.sqlite")
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(program, path, sql).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	return Open(path, Options{})
}

// The reader refuses, drops or doubts the parts that an export lacks, and guesses none.
func TestOddExports(t *testing.T) {
	const kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
	for name, tc := range map[string]struct {
		sql, want string // part of the error or of the warning
		dropped   int64
	}{
		"no column of streams": {sql: "ALTER TABLE " + kernels + " DROP COLUMN streamId", want: "has no column streamId"},
		"streams unknown":      {sql: "CREATE TABLE k AS SELECT * FROM " + kernels + "; DROP TABLE " + kernels + "; ALTER TABLE k RENAME TO " + kernels + "; UPDATE " + kernels + " SET streamId = NULL WHERE rowid % 100 = 1", want: "device or stream", dropped: 4},
		"times not collected":  {sql: "UPDATE " + kernels + " SET start = 0, end = 0 WHERE rowid = 7", want: "could not collect", dropped: 1},
		"unified memory":       {sql: "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyKind = 11, correlationId = NULL", want: "1 copies move pages of unified memory"},
		"rows twice":           {sql: "INSERT INTO " + kernels + " SELECT * FROM " + kernels, want: "which the trace has twice", dropped: 400},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := changed(t, "small.sqlite", tc.sql)
			got := fmt.Sprint(err)
			if err == nil {
				got = w.Report.Warning()
				if n := w.Report.Dropped(); n != tc.dropped {
					t.Errorf("%d rows dropped, want %d", n, tc.dropped)
				}
			}
			if !strings.Contains(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// Exports before 2024 do not tell the type of the profiler's own time.
func TestOverheadWithoutTypes(t *testing.T) {
	w, err := changed(t, "overhead.sqlite", "DROP TABLE CUPTI_ACTIVITY_KIND_OVERHEAD; DROP TABLE ENUM_CUPTI_OVERHEAD_TYPE; ALTER TABLE PROFILER_OVERHEAD DROP COLUMN overheadType")
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Overheads) != 1 || w.Overheads[0].Dur != 500*time.Nanosecond {
		t.Errorf("%+v", w.Overheads)
	}
}

func TestUnknownExport(t *testing.T) {
	b := bytes.ReplaceAll(small(t), []byte("deviceId INTEGER NOT NULL, contextId"), []byte("deviceXX INTEGER NOT NULL, contextId"))
	if _, err := read(b); err == nil || !strings.Contains(err.Error(), "deviceId") {
		t.Errorf("%v", err)
	}
	b = bytes.ReplaceAll(small(t), []byte("CUPTI_ACTIVITY_KIND_KERNEL"), []byte("CUPTI_ACTIVITY_KIND_KERNXX"))
	w, err := read(b)
	if err != nil || len(w.Ops) != 1 {
		t.Errorf("an export without a table: %v", err)
	}
}

func FuzzReadSQLite(f *testing.F) {
	f.Add(small(f))
	for _, name := range []string{"testdata/waits.sqlite", "testdata/streams.sqlite", "testdata/rocpd.sqlite", "testdata/rocpd40.sqlite", "testdata/rocpd41.sqlite"} {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := read(b)
		if (err == nil) != (w != nil) {
			t.Fatal(fmt.Sprint(w, err))
		}
	})
}
