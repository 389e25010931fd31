package cli

import (
	"bytes"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fullDisk is dxpu on a disk with room for a few bytes of each file.
func fullDisk() {
	signal.Ignore(unix.SIGXFSZ)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 10, Max: 10}); err != nil {
		panic(err)
	}
	os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// smallScenario is a scenario that takes no time.
const smallScenario = `servers: [{count: 2, cores: 64, memory-gib: 512, gpus: 2, model: T4}]
requests: [{weight: 1, gpus: 1, cores: 8, memory-gib: 48}]
policies: [first-fit]
pools: [{name: pool}]
seeds: 1
`

// outputCommands are commands that write a file, whose name is FILE.
func outputCommands(t *testing.T) map[string][]string {
	scenario := filepath.Join(t.TempDir(), "small.yaml")
	if err := os.WriteFile(scenario, []byte(smallScenario), 0o600); err != nil {
		t.Fatal(err)
	}
	trace, err := filepath.Abs(nsysFile)
	if err != nil {
		t.Fatal(err)
	}
	manager := []string{"manager", "--listen", "127.0.0.1:0", "--log-level", "error"}
	return map[string][]string{
		"plot.svg":   {"model", "predict", trace, "--svg", "FILE"},
		"table.csv":  {"sim", "run", scenario, "--csv", "FILE"},
		"sim.html":   {"sim", "run", scenario, "--report", "FILE"},
		"share.html": {"share", "compare", "--policy", "streams", "--duration", "100ms", "--html", "FILE"},
		"dxpu.1":     {"docs", "man", "."},
		"url":        append(manager, "--url-file", "FILE"),
		"admin":      append(manager, "--admin-listen", "127.0.0.1:0", "--admin-url-file", "FILE"),
	}
}

// runInto runs a command in a folder, and returns what it prints.
func runInto(t *testing.T, dir, program, file string, args []string) (string, error) {
	var line []string
	for _, a := range args {
		line = append(line, strings.ReplaceAll(a, "FILE", file))
	}
	cmd := exec.CommandContext(t.Context(), program, line...)
	var out bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	err := cmd.Run()
	return out.String(), err
}

// A command that cannot write the whole file leaves the earlier one, and no other file.
func TestOutputFilesOnAFullDisk(t *testing.T) {
	for file, args := range outputCommands(t) {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, file)
			if err := os.WriteFile(path, []byte("good"), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := runInto(t, dir, "dxpu-full-disk", path, args)
			if err == nil || !strings.Contains(out, file+": file too large") {
				t.Errorf("%v: %s", err, out)
			}
			if raw, err := os.ReadFile(path); err != nil || string(raw) != "good" {
				t.Errorf("the file has %d bytes, %v", len(raw), err)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
				t.Errorf("%d files are left, %v", len(entries), err)
			}
		})
	}
}

// A join token that could not be written is not there at the next start.
func TestJoinTokenOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	out, err := runInto(t, dir, "dxpu-full-disk", "token", []string{"manager", "--listen", "127.0.0.1:0", "--join-token-file", "FILE"})
	if err == nil || !strings.Contains(out, "--join-token-file: token: file too large") {
		t.Errorf("%v: %s", err, out)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%d files are left, %v", len(entries), err)
	}
}

// Files may be standard output, here a pipe by way of a link with the right name.
func TestOutputFilesOnStandardOutput(t *testing.T) {
	for file, want := range map[string]string{"plot.svg": "</svg>", "table.csv": "table,name,column,value", "sim.html": "</html>", "share.html": "</html>"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			link := filepath.Join(dir, file)
			if err := os.Symlink("/dev/stdout", link); err != nil {
				t.Fatal(err)
			}
			out, err := runInto(t, dir, "dxpu", link, outputCommands(t)[file])
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("%v: %s", err, out)
			}
			if to, err := os.Readlink(link); err != nil || to != "/dev/stdout" {
				t.Errorf("the link leads to %s, %v", to, err)
			}
		})
	}
}
