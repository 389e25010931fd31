package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/agent/agenttest"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/dataplane/capture"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
)

// testTimeout bounds the wait for an event on a loaded machine.
const testTimeout = 30 * time.Second

// runningProxy is a proxy in this process with its admin listener.
type runningProxy struct {
	proxy
	fabric *netio.Fabric
	url    string
}

// runProxy runs a proxy until the test ends, without a manager.
func (s *proxyPair) runProxy(t *testing.T, kind dxpuv1.NodeKind, allowCapture bool, build func(*netio.Fabric) (proxy, error)) *runningProxy {
	t.Helper()
	o := &proxyOptions{
		listen: []string{"127.0.0.1:0"}, admin: adminOptions{listen: "127.0.0.1:0", urlFile: filepath.Join(t.TempDir(), "url")},
		name: "n", capture: allowCapture, conn: &connection{},
	}
	log := slog.New(slog.DiscardHandler)
	f, err := o.fabric(log)
	if err != nil {
		t.Fatal(err)
	}
	p, err := build(f)
	if err != nil {
		t.Fatal(err)
	}
	p.OnChange(func() {
		select {
		case s.news <- struct{}{}:
		default:
		}
	})
	a, err := o.agent(t.Context(), kind, p, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	serve, err := o.adminServer(ctx, p, f, a, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(o.admin.urlFile)
	if err != nil {
		t.Fatal(err)
	}
	netCtx, stopNet := context.WithCancel(context.Background())
	var network, roles sync.WaitGroup
	run := func(g *sync.WaitGroup, ctx context.Context, run func(context.Context) error) {
		g.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	run(&network, netCtx, f.Run)
	run(&roles, ctx, p.Run)
	run(&roles, ctx, serve)
	t.Cleanup(func() {
		stop()
		roles.Wait()
		stopNet()
		network.Wait()
	})
	return &runningProxy{p, f, strings.TrimSpace(string(raw))}
}

// proxyPair is an embedded host and a box with one GPU.
type proxyPair struct {
	host, box *runningProxy
	inside    *hostproxy.Embedded
	news      chan struct{} // signals a new state of either side
}

func newProxyPair(t *testing.T) *proxyPair {
	t.Helper()
	s := &proxyPair{inside: hostproxy.NewEmbedded(hostproxy.EmbeddedSpec{}), news: make(chan struct{}, 1)}
	t.Setenv("DXPU_MANAGER", "http://127.0.0.1:1")
	t.Setenv("DXPU_JOIN_TOKEN", "token-for-tests")
	log := slog.New(slog.DiscardHandler)
	s.box = s.runProxy(t, dxpuv1.NodeKind_NODE_KIND_BOX, false, func(f *netio.Fabric) (proxy, error) {
		g, err := gpu.New(gpu.Spec{VRAM: 32 << 20})
		if err != nil {
			return nil, err
		}
		return boxproxy.New(boxproxy.Config{Slots: []boxproxy.Slot{{Device: g}}, Fabric: f, Logger: log})
	})
	s.host = s.runProxy(t, dxpuv1.NodeKind_NODE_KIND_HOST, true, func(f *netio.Fabric) (proxy, error) {
		return hostproxy.New(hostproxy.Config{Slots: 1, Front: s.inside, Fabric: f, Domain: "vm0", Logger: log})
	})
	s.bind(t, 3)
	return s
}

// open opens the GPU with the driver.
func (s *proxyPair) open(t *testing.T) *driver.Device {
	t.Helper()
	bus, err := s.inside.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	device, err := driver.Open(t.Context(), bus, driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	})
	return device
}

// bind binds the GPU to the host, as a manager does, and waits for the attach.
func (s *proxyPair) bind(t *testing.T, epoch uint64) {
	t.Helper()
	b := agenttest.Binding{
		ID: "b-1", Epoch: epoch, Domain: "vm0", MTU: 1400,
		Host: agenttest.End{Node: 70, Addresses: agent.Addresses(s.host.fabric)},
		Box:  agenttest.End{Node: 9, Addresses: agent.Addresses(s.box.fabric)},
	}
	s.box.Apply(agenttest.Desired(9, 2*epoch, b))
	s.host.Apply(agenttest.Desired(70, 2*epoch, b))
	s.await(t, "attached", func() bool {
		return s.host.Observe().Slots[0].GetBinding().GetState() == dxpuv1.BindingState_BINDING_STATE_ATTACHED
	})
}

// unbind ends the binding and waits for the detach.
func (s *proxyPair) unbind(t *testing.T, epoch uint64) {
	t.Helper()
	s.host.Apply(&dxpuv1.DesiredState{NodeNumber: 70, Revision: 2*epoch + 1})
	s.box.Apply(&dxpuv1.DesiredState{NodeNumber: 9, Revision: 2*epoch + 1})
	s.await(t, "detached", func() bool {
		return s.host.Observe().Slots[0].Binding == nil && s.box.Observe().Slots[0].Binding == nil
	})
}

// await waits for a state that a side reports.
func (s *proxyPair) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.After(testTimeout); !ok(); {
		select {
		case <-s.news:
		case <-limit:
			t.Fatalf("not %s: %v", what, s.host.Observe())
		}
	}
}

// copyBothWays moves n bytes to the GPU and back.
func copyBothWays(t *testing.T, device *driver.Device, n int) {
	t.Helper()
	stream, err := device.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	ptr, err := device.Malloc(uint64(n))
	if err != nil {
		t.Fatal(err)
	}
	in := bytes.Repeat([]byte("DxPU"), n/4)
	out := make([]byte, n)
	if err := stream.Upload(t.Context(), ptr, in); err != nil {
		t.Fatal(err)
	}
	if err := stream.Download(t.Context(), out, ptr); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(in, out) {
		t.Error("the bytes differ after the copies")
	}
}

// dxpu top shows the traffic of a real pair.
func TestTopOfRealProxies(t *testing.T) {
	s := newProxyPair(t)
	const n = 1 << 20
	copyBothWays(t, s.open(t), n)
	for _, tc := range []struct {
		name string
		p    *runningProxy
		peer uint32
		tags bool
	}{
		{"host", s.host, 9, false},
		{"box", s.box, 70, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, _ := dxpu(t, "top", "--once", "--json", "--interval", "10ms", "--admin", tc.p.url)
			var out top
			if err := json.Unmarshal([]byte(got), &out); err != nil {
				t.Fatal(err)
			}
			if out.Role != tc.name || len(out.Slots) != 1 || out.Slots[0].Binding.Link == nil {
				t.Fatalf("%s", got)
			}
			slot := &out.Slots[0]
			b, l := slot.Binding, slot.Binding.Link
			if b.ID != "b-1" || b.Epoch != 3 || b.Peer.Node != tc.peer || len(b.Peer.Addresses) != 1 || l.State != "up" {
				t.Errorf("%+v", b)
			}
			if l.BytesOut < n || l.BytesIn < n {
				t.Errorf("%d bytes out and %d in, want %d at least", l.BytesOut, l.BytesIn, n)
			}
			if (slot.Tags != nil) != tc.tags || tc.tags && slot.Tags.Total != 140 {
				t.Errorf("tags %+v", slot.Tags)
			}
			if slot.Network <= 0 || slot.Request <= 0 || slot.Here <= 0 || l.Sent.Min > l.Sent.Smoothed {
				t.Errorf("round trips: network %v, request %v, here %v", slot.Network, slot.Request, slot.Here)
			}
		})
	}
	text, _ := dxpu(t, "top", "--once", "--interval", "10ms", "--admin", s.host.url)
	if !strings.Contains(text, "attached") {
		t.Error(text)
	}
	if testing.Verbose() {
		t.Log("\n" + text)
	}
}

// A capture of a real pair with an encrypted link contains decrypted TLPs, and
// Wireshark joins each completion with its request.
func TestCaptureOfRealProxies(t *testing.T) {
	s := newProxyPair(t)
	device, dir := s.open(t), t.TempDir()
	file := filepath.Join(dir, "a.pcapng")
	const count = 400
	done := make(chan string, 1)
	go func() {
		_, stderr := dxpu(t, "capture", "--admin", s.host.url, "--slot", "0", "-c", fmt.Sprint(count), "-w", file)
		done <- stderr
	}()
	for running := true; running; { // the start of the capture is not visible
		copyBothWays(t, device, 64<<10)
		select {
		case stderr := <-done:
			running = false
			if !strings.HasPrefix(stderr, "400 TLPs captured, ") {
				t.Error(stderr)
			}
		default:
		}
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	tool, err := exec.LookPath("tshark")
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("tshark is not installed (Debian: apt install tshark), so the capture is not checked")
	}
	if err != nil {
		t.Fatal(err)
	}
	lua := filepath.Join(dir, "dxpu.lua")
	printed, _ := dxpu(t, "capture", "--dissector")
	if printed != capture.Dissector {
		t.Error("--dissector prints a different text")
	}
	if err := os.WriteFile(lua, []byte(printed), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) []string {
		cmd := exec.CommandContext(t.Context(), tool, append([]string{"-2", "-n", "-X", "lua_script:" + lua, "-r", file}, args...)...)
		cmd.Env = append(os.Environ(), "WIRESHARK_CONFIG_DIR="+dir)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))
	}
	types := run("-T", "fields", "-e", "dxpu.tlp.type")
	if len(types) != count || !slices.Contains(types, "MRd") || !slices.Contains(types, "CplD") || !slices.Contains(types, "MWr") {
		t.Errorf("%d TLPs: %v", len(types), slices.Compact(slices.Sorted(slices.Values(types))))
	}
	if bad := run("-R", "dxpu.malformed || dxpu.crc.bad || _ws.lua.error", "-T", "fields", "-e", "frame.number"); len(bad) != 0 {
		t.Errorf("invalid TLPs: %v", bad)
	}
	if times := run("-T", "fields", "-e", "dxpu.tlp.time"); len(times) == 0 {
		t.Error("Wireshark joined no completion with its request")
	}
}

// Reports and changes of bindings may be concurrent, which the race detector checks.
func TestReportsWhileBindingsChange(t *testing.T) {
	s := newProxyPair(t)
	ctx, stop := context.WithCancel(t.Context())
	var reports sync.WaitGroup
	for _, p := range []*runningProxy{s.host, s.box} {
		reports.Go(func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for ; ctx.Err() == nil; <-tick.C {
				r := p.Report()
				if l := linkOf(&r.Slots[0]); l != nil && l.Number != 9<<8 {
					t.Errorf("a link of binding %#x", l.Number)
				}
			}
		})
	}
	for epoch := uint64(3); epoch < 6; epoch++ {
		s.unbind(t, epoch)
		s.bind(t, epoch+1)
	}
	stop()
	reports.Wait()
}

// A capture needs a local client and valid parameters.
func TestCaptureIsForbidden(t *testing.T) {
	h := agent.CaptureHandler(nil, true, "", "")
	for _, tc := range []struct {
		name, remote, host, query string
		want                      int
	}{
		{"another machine", "192.0.2.1:5000", "192.0.2.2:9100", "", http.StatusForbidden},
		{"a name that resolves to this machine", "127.0.0.1:5000", "rebound.example:9100", "", http.StatusForbidden},
		{"bad slot", "127.0.0.1:5000", "127.0.0.1:9100", "slot=x", http.StatusBadRequest},
		{"bad binding", "[::1]:5000", "localhost:9100", "binding=4294967296", http.StatusBadRequest},
		{"bad length", "127.0.0.1:5000", "localhost", "snaplen=-1", http.StatusBadRequest},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+tc.host+"/capture?"+tc.query, nil)
			r.RemoteAddr = tc.remote
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != tc.want {
				t.Errorf("status %d, want %d", w.Code, tc.want)
			}
		})
	}
}
