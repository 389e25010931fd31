package cli

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
	"github.com/dxpu-project/dxpu/internal/sharing/nvidiatest"
)

func TestMain(m *testing.M) {
	// Main starts its own binary for daemons and benchmarks. In a test that calls Main
	// this is the test binary, which would run the tests again, without end. "go test"
	// gives it flags of its own first.
	name := filepath.Base(os.Args[0])
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") && programs[name] == nil {
		fmt.Fprintf(os.Stderr, "%s %s: a test started its own binary as a program\n", name, os.Args[1])
		os.Exit(exitUsage)
	}
	if os.Getenv(startedByTest) != "" { // TestStartedAsProgram ends here without the check above
		os.Exit(exitFailure)
	}
	if os.Getenv("DXPU_CONFIG") == "" { // do not read the contexts of the user
		if err := os.Setenv("DXPU_CONFIG", filepath.Join(os.DevNull, "none")); err != nil {
			panic(err)
		}
	}
	// With the race detector, every program sleeps for a second before it ends, to
	// detect races of goroutines that it did not wait for. The scripts run hundreds
	// of programs, which wait for their goroutines.
	if os.Getenv("GORACE") == "" {
		if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
			panic(err)
		}
	}
	testscript.Main(m, programs)
}

// programs are the programs that the test binary is under another name.
var programs = map[string]func(){
	"dxpu":           func() { os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	"dxpu-fake-node": func() { os.Exit(fakeNode(os.Args[1:])) },
	"dxpu-fake-oidc": func() { os.Exit(fakeProvider(os.Args[1:])) },
	"dxpu-fake-cuda": func() { os.Exit(fakeCUDA(os.Args[1:])) },
	"dxpu-full-disk": fullDisk,
	"nvidia-smi":     nvidiatest.Main,

	"nvidia-cuda-mps-control": nvidiatest.Main,
	"nvidia-cuda-mps-server":  nvidiatest.Main,
}

// startedByTest marks the process that TestStartedAsProgram starts.
const startedByTest = "DXPU_TEST_STARTED"

// A test binary that a test starts as a program does not run the tests again.
func TestStartedAsProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "bench", "serve")
	cmd.Env = append(os.Environ(), startedByTest+"=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitUsage || !strings.Contains(string(out), "started its own binary") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestScripts(t *testing.T) {
	commands := scriptCommands()
	commands["build-opencl"] = openclBuilder(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv("DXPU_JOIN_TOKEN", "token-for-tests")
			env.Setenv("TZ", "UTC")
			return nil
		},
		Cmds:      commands,
		Condition: scriptCondition,
	})
}

// scriptCommands are the commands of scripts in addition to the programs.
func scriptCommands() map[string]func(*testscript.TestScript, bool, []string) {
	return map[string]func(*testscript.TestScript, bool, []string){
		"manager-url":   managerURL,
		"issuer":        func(ts *testscript.TestScript, _ bool, args []string) { ts.Setenv("ISSUER", ts.ReadFile(args[0])) },
		"admin-url":     adminFileURL,
		"await":         await,
		"lease-id":      leaseID,
		"await-file":    awaitFile,
		"await-text":    awaitText,
		"ca-hash":       caHash,
		"collector":     startCollector,
		"one-trace":     oneTrace,
		"notify-socket": notifySocket,
		"await-ready":   awaitReady,
		"leaks":         leaks,
		"gather":        gather,
		"lease-id-of": func(ts *testscript.TestScript, _ bool, args []string) {
			ts.Setenv("LEASE", regexp.MustCompile(`l-\d+(-[0-9a-z]+)?`).FindString(ts.ReadFile(args[0])))
		},
		"usage-error": func(ts *testscript.TestScript, _ bool, args []string) { expectCode(ts, exitUsage, args) },
		"times-out":   func(ts *testscript.TestScript, _ bool, args []string) { expectCode(ts, exitTimeout, args) },
		"refused":     func(ts *testscript.TestScript, _ bool, args []string) { expectCode(ts, exitRefused, args) },
		"managers":    chooseManagers,
		"leader":      findLeader,

		"initial-cluster": findCluster,
		"signal":          signalManager,
		"await-follower": func(ts *testscript.TestScript, _ bool, args []string) {
			poll(ts, func() bool { return strings.HasPrefix(readyz(args[0]), "follower: ") }, args[0]+" did not become a follower")
		},
		"token": func(ts *testscript.TestScript, _ bool, args []string) {
			ts.Setenv("DXPU_JOIN_TOKEN", strings.TrimSpace(ts.ReadFile(args[0])))
		},
		"same-address": func(ts *testscript.TestScript, _ bool, _ []string) {
			ts.Setenv("ADDRESS", strings.TrimPrefix(ts.Getenv("DXPU_MANAGER"), "http://"))
		},
	}
}

// expectCode runs a dxpu command that must end with an exit code:
//
//	usage-error ARGS...
func expectCode(ts *testscript.TestScript, want int, args []string) {
	err := ts.Exec("dxpu", args...)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != want {
		ts.Fatalf("%v, want exit code %d", err, want)
	}
}

// managerURL waits for the file that a manager writes and sets DXPU_MANAGER:
//
//	manager-url FILE
func managerURL(ts *testscript.TestScript, _ bool, args []string) {
	poll(ts, func() bool {
		raw, err := os.ReadFile(ts.MkAbs(args[0]))
		ts.Setenv("DXPU_MANAGER", strings.TrimSpace(string(raw)))
		return err == nil && strings.HasSuffix(string(raw), "\n")
	}, "the manager does not serve")
}

// adminFileURL waits for the file that a proxy writes and sets DXPU_ADMIN:
//
//	admin-url FILE
func adminFileURL(ts *testscript.TestScript, _ bool, args []string) {
	poll(ts, func() bool {
		raw, err := os.ReadFile(ts.MkAbs(args[0]))
		ts.Setenv("DXPU_ADMIN", strings.TrimSpace(string(raw)))
		return err == nil && strings.HasSuffix(string(raw), "\n")
	}, "the proxy does not serve")
}

// await runs a dxpu command until its output matches:
//
//	await REGEXP ARGS...
func await(ts *testscript.TestScript, _ bool, args []string) {
	want := regexp.MustCompile("(?m)" + args[0])
	args = append(args[1:], "--manager", ts.Getenv("DXPU_MANAGER"))
	var out bytes.Buffer
	if !within(func() bool {
		out.Reset()
		return Main(args, strings.NewReader(""), &out, &out) == exitOK && want.Match(out.Bytes())
	}) {
		ts.Fatalf("dxpu %s never matched %s; at last it said:\n%s", strings.Join(args, " "), want, out.String())
	}
	ts.Logf("%s", out.String())
}

// leaseID sets LEASE to the ID of a tenant's lease:
//
//	lease-id TENANT
func leaseID(ts *testscript.TestScript, _ bool, args []string) {
	var out bytes.Buffer
	Main([]string{"get", "leases", "--tenant", args[0], "--manager", ts.Getenv("DXPU_MANAGER")}, strings.NewReader(""), &out, &out)
	ts.Setenv("LEASE", regexp.MustCompile(`l-\d+(-[0-9a-z]+)?`).FindString(out.String()))
}

// awaitFile waits for a file that a daemon writes:
//
//	await-file FILE
func awaitFile(ts *testscript.TestScript, _ bool, args []string) {
	poll(ts, func() bool {
		_, err := os.Stat(ts.MkAbs(args[0]))
		return err == nil
	}, args[0]+" was not written")
}

// awaitText waits for a line of a file that a daemon writes:
//
//	await-text REGEXP FILE
func awaitText(ts *testscript.TestScript, _ bool, args []string) {
	want := regexp.MustCompile("(?m)" + args[0])
	poll(ts, func() bool {
		raw, err := os.ReadFile(ts.MkAbs(args[1]))
		return err == nil && want.Match(raw)
	}, args[1]+" never matched "+args[0])
}

// caHash sets DXPU_CA_HASH to the hash of an authority:
//
//	ca-hash FILE
func caHash(ts *testscript.TestScript, _ bool, args []string) {
	block, _ := pem.Decode([]byte(ts.ReadFile(args[0])))
	if block == nil {
		ts.Fatalf("%s is not a PEM file", args[0])
	}
	c, err := x509.ParseCertificate(block.Bytes)
	ts.Check(err)
	ts.Setenv("DXPU_CA_HASH", auth.HashOf(c))
}

// poll waits for a condition in another process.
func poll(ts *testscript.TestScript, ok func() bool, failure string) {
	if !within(ok) {
		ts.Fatalf("%s", failure)
	}
}

// within waits for a condition, and reports whether it came in time.
func within(ok func() bool) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// fakeNode is a proxy without a data path that reaches each desired state at once. A
// file fail-SLOT in the directory NAME makes the device of that slot fail, a file
// eject-SLOT makes the guest remove it once, and a file hold-SLOT keeps the guest from
// releasing it.
//
//	dxpu-fake-node host|box NAME SLOTS
func fakeNode(args []string) int {
	slots, err := strconv.Atoi(args[2])
	if err != nil {
		return exitUsage
	}
	h := &fakeHandler{name: args[1], box: args[0] == "box", slots: slots, held: map[uint32]*dxpuv1.ObservedBinding{}}
	kind := dxpuv1.NodeKind_NODE_KIND_HOST
	if h.box {
		kind = dxpuv1.NodeKind_NODE_KIND_BOX
	}
	c, err := agent.New(agent.Config{
		Manager: os.Getenv("DXPU_MANAGER"), JoinToken: os.Getenv("DXPU_JOIN_TOKEN"), Kind: kind, Name: h.name, Version: "test",
		CAHash: os.Getenv("DXPU_CA_HASH"),
	}, h)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = c.Run(ctx)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return exitFailure
	}
	return exitOK
}

type fakeHandler struct {
	name  string
	box   bool
	slots int

	mu      sync.Mutex
	desired *dxpuv1.DesiredState
	held    map[uint32]*dxpuv1.ObservedBinding // the last binding of each slot
}

// has reports whether a file about a slot exists.
func (h *fakeHandler) has(what string, slot uint32) bool {
	_, err := os.Stat(filepath.Join(h.name, fmt.Sprint(what, "-", slot)))
	return err == nil
}

func (h *fakeHandler) Apply(d *dxpuv1.DesiredState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.desired = d
}

func (h *fakeHandler) Observe() *dxpuv1.ObservedState {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := &dxpuv1.ObservedState{
		AppliedRevision: h.desired.GetRevision(), Rack: "r1", BoxKind: dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH,
		Addresses: []*dxpuv1.PathAddress{{Address: "127.0.0.1:7471"}},
	}
	state := dxpuv1.BindingState_BINDING_STATE_ATTACHED
	if h.box {
		state = dxpuv1.BindingState_BINDING_STATE_READY
	}
	for i := range uint32(h.slots) {
		s := &dxpuv1.ObservedSlot{Slot: i, Domain: "vm0", Health: dxpuv1.Health_HEALTH_OK}
		if h.box {
			s.Domain = ""
			s.Device = &dxpuv1.Device{Model: "DX100", MemoryBytes: 16 << 30, Serial: fmt.Sprint("S-", h.name, "-", i)}
			if h.has("fail", i) {
				s.Health, s.HealthDetail = dxpuv1.Health_HEALTH_FAILED, "a file says so"
			}
		}
		for _, b := range h.desired.GetBindings() {
			if b.Slot == i {
				s.Binding = &dxpuv1.ObservedBinding{BindingId: b.BindingId, Epoch: b.Epoch, State: state}
				s.Binding.Ejected = !h.box && h.has("eject", i) && b.Replugs == 0
				s.Binding.Replugs = b.Replugs
			}
		}
		h.hold(i, s)
		o.Slots = append(o.Slots, s)
	}
	return o
}

// hold reports a binding that is no longer desired while the guest holds the device.
func (h *fakeHandler) hold(slot uint32, s *dxpuv1.ObservedSlot) {
	switch {
	case s.Binding != nil:
		h.held[slot] = s.Binding
	case !h.box && h.has("hold", slot) && h.held[slot] != nil:
		s.Binding = proto.CloneOf(h.held[slot])
		s.Binding.State, s.Binding.Detail = dxpuv1.BindingState_BINDING_STATE_DETACHING, "the guest still holds the device: a file says so"
	case h.held[slot] != nil:
		s.Removal = &dxpuv1.Removal{BindingId: h.held[slot].BindingId}
	}
}

// Every command has a short text that starts with a verb, a long text of sentences, and
// an example.
func TestEveryCommandHasHelp(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Name() == "help" || c.Name() == "completion" {
			return
		}
		if !regexp.MustCompile(`^[A-Z][a-z]+,? .*[^.]$`).MatchString(c.Short) {
			t.Errorf("%q: short text %q", c.CommandPath(), c.Short)
		}
		if !regexp.MustCompile(`(?s)^[A-Zd].*[.:]`).MatchString(c.Long) {
			t.Errorf("%q: long text %q", c.CommandPath(), c.Long)
		}
		if c.Example == "" && c.Name() != "exit-codes" {
			t.Errorf("%q has no example", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand(&connection{}))
}

func TestExitCodes(t *testing.T) {
	tests := []struct {
		name   string
		args   string
		code   int
		stderr string
	}{
		{"help", "", exitOK, ""},
		{"version", "version", exitOK, ""},
		{"unknown command", "frobnicate", exitUsage, `dxpu has no command "frobnicate"`},
		{"unknown subcommand", "get frobs", exitUsage, `dxpu get has no command "frobs"`},
		{"unknown flag", "get gpus --frob", exitUsage, "unknown flag: --frob"},
		{"missing argument", "describe gpu", exitUsage, "usage: dxpu describe gpu GPU"},
		{"unknown word", "get gpus --state sleepy", exitUsage, "one of free, unavailable, bound, releasing"},
		{"bad size", "lease create --memory lots", exitUsage, "write it like 16GiB"},
		{"huge size", "lease create --memory 99999999999TiB", exitUsage, "is not a size"},
		{"negative limit", "get audit --limit -1", exitUsage, "--limit -1: want 0 or more"},
		{"negative count", "lease create --count -1", exitUsage, `"-1" is not a whole number of 0 or more`},
		{"no GPUs to run on", "run --socket-dir / --gpus 0 -- true", exitUsage, "--gpus 0: want 1 to 64"},
		{"no sockets to run on", "run --socket-dir /absent -- true", exitFailure, "--socket-dir: "},
		{"bad kind", "cordon cat tom", exitUsage, "gpu, box or host"},
		{"bad URL", "get gpus --manager here", exitUsage, "is not the URL of a manager"},
		{"no manager", "get gpus --manager http://127.0.0.1:1", exitFailure, "is a manager running at this address?"},
		{"bad spares", "manager --spares -1", exitUsage, "--spares: -1 is negative"},
		{"bad times", "manager --heartbeat 1s --lost-after 1s", exitUsage, "at least twice"},
		{"half of TLS", "manager --tls-cert x", exitUsage, "go together"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stderr bytes.Buffer
			code := Main(strings.Fields(tt.args), strings.NewReader(""), io.Discard, &stderr)
			if code != tt.code || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("exit code %d, want %d; stderr:\n%s", code, tt.code, stderr.String())
			}
		})
	}
}
