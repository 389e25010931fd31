package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/datadriven"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
)

// TestWrongInputs runs the command lines of testdata/wrong, each of which is wrong, and
// compares the exit code and all that is printed. -rewrite writes what is printed:
// read it before you commit it.
//
//	dxpu           runs the command line of the input; arguments such as TZ=UTC set variables
//	write NAME     writes the input into a file of the directory in which the commands run
//
// Words such as $MANAGER stand for the servers of newWrongWorld.
func TestWrongInputs(t *testing.T) {
	w := newWrongWorld(t)
	lines := 0
	files, err := filepath.Abs(filepath.Join("testdata", "wrong")) // the tests change the directory
	if err != nil {
		t.Fatal(err)
	}
	datadriven.Walk(t, files, func(t *testing.T, path string) {
		w.dir = t.TempDir()
		w.enter(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "write":
				input := w.expand(d.Input)
				if input != "" {
					input += "\n"
				}
				if err := os.WriteFile(filepath.Join(w.dir, d.CmdArgs[0].Key), []byte(input), 0o600); err != nil {
					d.Fatalf(t, "%v", err)
				}
				return ""
			case "dxpu":
				lines++
				return w.run(t, d)
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
	for _, bad := range w.bad { // after -rewrite has written the files
		t.Error(bad)
	}
	const least = 242
	if lines < least {
		t.Errorf("%d wrong command lines, want %d or more", lines, least)
	}
}

// wrongEnv are the variables of all wrong command lines.
var wrongEnv = []string{"DXPU_CONFIG=contexts.yaml", "DXPU_MANAGER=", "DXPU_TOKEN=", "DXPU_ADMIN=", "DXPU_JOIN_TOKEN=", "TZ=UTC"}

// wrongPatience is the time after which a command line that has not ended is a daemon.
const wrongPatience = 20 * time.Second

// wrongWorld is what wrong command lines meet.
type wrongWorld struct {
	dir  string
	env  []string
	vars map[string]string // names, such as $MANAGER, and what they stand for
	bad  []string          // command lines that were accepted, or have words that no message may have
}

// newWrongWorld starts the servers of the wrong command lines:
//
//	$MANAGER    a manager without tokens; it has the host h1 and the box b1, which are lost
//	$TLS        a manager that wants tokens; $OPERATOR and $TENANT are files with tokens
//	$CA         the file with the certificate of its authority
//	$STATE      its data directory
//	$WEB        a web server that is not a manager
//	$SILENT     a server that closes every connection
//	$CLOSED     an address at which nothing listens
//	$TAKEN      the address of $SILENT, to listen at
func newWrongWorld(t *testing.T) *wrongWorld {
	w := &wrongWorld{dir: t.TempDir(), vars: map[string]string{}}
	w.env = append(os.Environ(), wrongEnv...)
	m, err := manager.New(t.Context(), manager.Config{JoinToken: "token-for-tests", Open: manager.OpenLoopback, Version: "v1", Now: func() time.Time { return time.Unix(1_700_000_000, 0) }})
	if err != nil {
		t.Fatal(err)
	}
	open := httptest.NewServer(m.Handler())
	t.Cleanup(open.Close)
	w.vars["$MANAGER"] = open.URL
	nodes := dxpuv1connect.NewNodeServiceClient(http.DefaultClient, open.URL)
	for name, kind := range map[string]dxpuv1.NodeKind{"h1": dxpuv1.NodeKind_NODE_KIND_HOST, "b1": dxpuv1.NodeKind_NODE_KIND_BOX} {
		if _, err := nodes.Enroll(t.Context(), connect.NewRequest(&dxpuv1.EnrollRequest{JoinToken: "token-for-tests", Kind: kind, Name: name, Version: "v1"})); err != nil {
			t.Fatal(err)
		}
	}
	w.startTLS(t)
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	w.vars["$WEB"] = web.URL
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 64<<10)) // without it the client may see a reset instead of the end
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	w.vars["$SILENT"], w.vars["$TAKEN"] = "http://"+l.Addr().String(), l.Addr().String()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.vars["$CLOSED"] = closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	return w
}

// startTLS starts the manager that wants tokens, and creates an operator's and a tenant's.
func (w *wrongWorld) startTLS(t *testing.T) {
	t.Helper()
	cmd := w.command(t.Context(), "manager", "--listen", "127.0.0.1:0", "--open=false", "--tls", "--data-dir", "state", "--url-file", "url", "--log-level", "error")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	// It prints its URL when it serves, and later nothing that would fill the pipe.
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the manager with TLS did not start: %v", err)
	}
	url := ""
	for tick := time.NewTicker(10 * time.Millisecond); url == ""; <-tick.C {
		raw, _ := os.ReadFile(filepath.Join(w.dir, "url")) // absent at first
		url = strings.TrimSpace(string(raw))
		if t.Context().Err() != nil {
			t.Fatal("the manager with TLS did not start")
		}
	}
	w.vars["$TLS"], w.vars["$PLAIN"] = url, strings.Replace(url, "https:", "http:", 1)
	w.vars["$STATE"] = filepath.Join(w.dir, "state")
	w.vars["$CA"] = filepath.Join(w.vars["$STATE"], "ca.crt")
	for name, args := range map[string][]string{
		"$OPERATOR": {"token", "create", "--role", "operator"},
		"$TENANT":   {"token", "create", "--role", "tenant", "--tenant", "default"},
	} {
		args = append(args, "--manager", url, "--ca-file", w.vars["$CA"], "--token-file", filepath.Join(w.dir, "state", "admin-token"))
		token, err := w.command(t.Context(), args...).Output()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		w.vars[name] = filepath.Join(w.dir, strings.ToLower(name[1:]))
		if err := os.WriteFile(w.vars[name], token, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// command returns a command line of dxpu as a process.
func (w *wrongWorld) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = append([]string{"dxpu"}, args...) // TestMain runs dxpu under this name
	cmd.Env, cmd.Dir = w.env, w.dir
	return cmd
}

func (w *wrongWorld) expand(s string) string {
	for name, value := range w.vars {
		s = strings.ReplaceAll(s, name, value)
	}
	return s
}

// words of Go, of its libraries and of the API, which no message may have.
var foreignWords = regexp.MustCompile(`strconv\.|shorthand|arg\(s\)|flag\(s\)|spec\.|_id\b|request_id|page_token|PutTenant|set force|etcdstore|ofdTry|get a authority|dial tcp|dial unix|listen tcp|context (deadline|canceled)|goroutine|panic|nil pointer|rpc|x509:|tls:|\bhttp: |Get "|Post "|(?:^|[^.\w])(?:json|yaml): |proto|invalid_argument|unmarshal|(?:^|[^-.\w])(?:perf|tlp|hook|vfiouser|backup|set|live): |0x[0-9a-f]{6,}|<nil>|%!`)

// enter gives this process the directory and the variables of the command lines until the
// test ends.
func (w *wrongWorld) enter(t *testing.T) {
	t.Helper()
	t.Chdir(w.dir)
	for _, v := range wrongEnv {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
}

// run runs a command line and returns its exit code and what it printed.
func (w *wrongWorld) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	line := splitLine(w.expand(d.Input))
	execute := w.runHere
	// The time zone of a process is that of its start. These commands become another program,
	// which would end the tests.
	if len(d.CmdArgs) > 0 || len(line) > 0 && slices.Contains([]string{"model", "run", "share"}, line[0]) {
		execute = w.runProcess
	}
	code, printed, ended := execute(t, d, line)
	if !ended {
		w.bad = append(w.bad, fmt.Sprintf("%s: dxpu %s is accepted: %s", d.Pos, d.Input, printed))
		return ""
	}
	text := w.collapse(printed)
	if m := foreignWords.FindString(text); m != "" || code == exitOK {
		w.bad = append(w.bad, fmt.Sprintf("%s: dxpu %s: exit code %d, with the word %q: %s", d.Pos, d.Input, code, m, text))
	}
	return fmt.Sprintf("exit code %d\n%s", code, text)
}

// runHere runs a command line in this process as the program does. A process for each takes
// ten times as long.
func (w *wrongWorld) runHere(t *testing.T, d *datadriven.TestData, line []string) (code int, printed string, ended bool) {
	t.Helper()
	var out bytes.Buffer
	exit := make(chan int, 1)
	go func() { exit <- Main(line, strings.NewReader(""), &out, &out) }()
	limit := time.NewTimer(wrongPatience)
	defer limit.Stop()
	select {
	case code = <-exit:
		return code, out.String(), true
	case <-limit.C:
		d.Fatalf(t, "dxpu %s is accepted", d.Input) // it goes on, and could disturb other lines
		return 0, "", false
	}
}

// runProcess runs a command line as a process.
func (w *wrongWorld) runProcess(t *testing.T, d *datadriven.TestData, line []string) (code int, printed string, ended bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wrongPatience)
	defer cancel()
	cmd := w.command(ctx, line...)
	for _, a := range d.CmdArgs {
		cmd.Env = append(cmd.Env, a.Key+"="+strings.Join(a.Vals, ","))
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		d.Fatalf(t, "dxpu %s: %v", d.Input, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), ctx.Err() == nil
}

// collapse writes the names of the servers in the place of their addresses.
func (w *wrongWorld) collapse(s string) string {
	names := make([]string, 0, len(w.vars))
	for name := range w.vars {
		names = append(names, name)
	}
	// The longest value first: a URL contains an address.
	slices.SortFunc(names, func(a, b string) int { return len(w.vars[b]) - len(w.vars[a]) })
	for _, name := range names {
		s = strings.ReplaceAll(s, w.vars[name], name)
	}
	return s
}

// splitLine splits a command line into words; single quotes keep spaces.
func splitLine(s string) []string {
	var words []string
	for i, part := range strings.Split(s, "'") {
		if i%2 == 1 {
			words = append(words, part)
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	return words
}
