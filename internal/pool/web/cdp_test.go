package web

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// browser is a headless Chromium that is driven over the DevTools protocol: JSON
// messages, each ended by a zero byte, over two pipes that the browser finds as
// its descriptors 3 and 4 (--remote-debugging-pipe).
type browser struct {
	cmd  *exec.Cmd
	in   *os.File
	done chan struct{} // closed when the browser sends no more

	mu      sync.Mutex
	next    int
	waiting map[int]chan packet
	console []string // what pages complained of
}

// packet is a message of the protocol.
type packet struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// chromium finds the browser, or says why the test cannot be.
func chromium(t *testing.T) string {
	t.Helper()
	if name := os.Getenv("DXPU_CHROMIUM"); name != "" {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatalf("DXPU_CHROMIUM: %v", err)
		}
		return path
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		path, err := exec.LookPath(name)
		switch {
		case err == nil:
			return path
		case !errors.Is(err, exec.ErrNotFound):
			t.Fatal(err)
		}
	}
	t.Skip("no Chromium on this machine; remedy: scripts/install-chromium.sh, or set DXPU_CHROMIUM")
	return ""
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a browser")
	}
	path := chromium(t)
	theirIn, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--force-color-profile=srgb", "--remote-debugging-pipe", "--user-data-dir="+filepath.Join(t.TempDir(), "profile"), "about:blank")
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirIn.Close()
	_ = theirOut.Close()
	b := &browser{cmd: cmd, in: in, done: make(chan struct{}), waiting: map[int]chan packet{}}
	go b.read(out)
	t.Cleanup(func() {
		_, _ = b.call("", "Browser.close", nil)
		_ = in.Close()
		select {
		case <-b.done:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-b.done
		}
		_ = cmd.Wait()
		_ = out.Close()
	})
	return b
}

// read takes in messages until the browser ends.
func (b *browser) read(out io.Reader) {
	defer close(b.done)
	r := bufio.NewReader(out)
	for {
		raw, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m packet
		if json.Unmarshal(raw[:len(raw)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		if c := b.waiting[m.ID]; c != nil {
			delete(b.waiting, m.ID)
			c <- m
		}
		switch m.Method {
		case "Runtime.exceptionThrown":
			b.console = append(b.console, string(m.Params))
		case "Log.entryAdded":
			var e struct {
				Entry struct{ Source, Level, Text string }
			}
			// What the network answers is looked at by the tests themselves.
			if json.Unmarshal(m.Params, &e) == nil && e.Entry.Source != "network" && e.Entry.Level != "verbose" {
				b.console = append(b.console, e.Entry.Source+": "+e.Entry.Text)
			}
		}
		b.mu.Unlock()
	}
}

var errBrowserGone = errors.New("the browser has ended or does not answer")

// call makes one call of the protocol, in a page's session or the browser's own.
func (b *browser) call(session, method string, params any) (json.RawMessage, error) {
	raw, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	if params == nil {
		raw = []byte("{}")
	}
	b.mu.Lock()
	b.next++
	m := packet{ID: b.next, SessionID: session, Method: method, Params: raw}
	c := make(chan packet, 1)
	b.waiting[m.ID] = c
	raw, err = json.Marshal(m)
	if err == nil {
		_, err = b.in.Write(append(raw, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case m := <-c:
		if m.Error != nil {
			return nil, fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		return m.Result, nil
	case <-b.done:
	case <-time.After(30 * time.Second):
	}
	return nil, fmt.Errorf("%s: %w", method, errBrowserGone)
}

// tab is one page of the browser.
type tab struct {
	t       *testing.T
	b       *browser
	session string
}

func (b *browser) open(t *testing.T, url string, width, height int) *tab {
	t.Helper()
	p := &tab{t: t, b: b}
	var target struct {
		TargetID string `json:"targetId"`
	}
	p.must("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct {
		SessionID string `json:"sessionId"`
	}
	p.must("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	p.session = session.SessionID
	t.Cleanup(func() { _, _ = b.call("", "Target.closeTarget", map[string]any{"targetId": target.TargetID}) })
	p.must("Runtime.enable", nil, nil)
	p.must("Log.enable", nil, nil)
	p.must("Page.enable", nil, nil)
	p.size(width, height)
	p.goTo(url)
	return p
}

func (p *tab) must(method string, params, result any) {
	p.t.Helper()
	raw, err := p.b.call(p.session, method, params)
	if err == nil && result != nil {
		err = json.Unmarshal(raw, result)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *tab) size(width, height int) {
	p.t.Helper()
	p.must("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
}

// goTo loads a page; it returns when its script has run.
func (p *tab) goTo(url string) {
	p.t.Helper()
	p.eval("window.left = true")
	p.must("Page.navigate", map[string]any{"url": url}, nil)
	p.wait("the page "+url, `!window.left && document.readyState === "complete"`)
}

// scheme makes the browser prefer "light" or "dark".
func (p *tab) scheme(name string) {
	p.t.Helper()
	p.must("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": name}}}, nil)
}

// eval runs a script in the page and returns its value.
func (p *tab) eval(script string) any {
	p.t.Helper()
	var r struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
		ExceptionDetails json.RawMessage `json:"exceptionDetails"`
	}
	p.must("Runtime.evaluate", map[string]any{"expression": script, "returnByValue": true, "awaitPromise": true}, &r)
	if r.ExceptionDetails != nil {
		p.t.Fatalf("%s: %s", script, r.ExceptionDetails)
	}
	return r.Result.Value
}

// wait waits until a script is true, and returns how long that took.
func (p *tab) wait(what, script string) time.Duration {
	p.t.Helper()
	begin := time.Now()
	for time.Since(begin) < 20*time.Second {
		if v, ok := p.eval(script).(bool); ok && v {
			return time.Since(begin)
		}
		// A picture more: the page itself says when it has drawn.
		p.eval(`new Promise(r => setTimeout(r, 15))`)
	}
	p.t.Fatalf("%s: not within 20 s: %s is %v", what, script, p.eval(script))
	return 0
}

// key presses a key as a keyboard does.
func (p *tab) key(name string) {
	p.t.Helper()
	codes := map[string]int{"Tab": 9, "Enter": 13, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
	text := ""
	if name == "Enter" {
		text = "\r"
	}
	for _, kind := range []string{"keyDown", "keyUp"} {
		p.must("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": name, "code": name, "text": text, "windowsVirtualKeyCode": codes[name]}, nil)
		text = ""
	}
}

// picture takes a picture of the page, as high as high, and keeps it where
// DXPU_SCREENSHOTS says.
func (p *tab) picture(name string) {
	p.t.Helper()
	dir := os.Getenv("DXPU_SCREENSHOTS")
	if dir == "" {
		dir = p.t.TempDir()
	}
	var r struct {
		Data string `json:"data"`
	}
	p.must("Page.captureScreenshot", map[string]any{"format": "png"}, &r)
	raw, err := base64.StdEncoding.DecodeString(r.Data)
	if err == nil && len(raw) < 10_000 {
		err = fmt.Errorf("a picture of %d bytes shows nothing", len(raw))
	}
	if strings.HasPrefix(name, "web-") { // for the repository
		raw = smaller(raw)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), raw, 0o644)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// smaller is a picture in its 256 most frequent colours, which are all but some
// of those at the edges of letters.
func smaller(raw []byte) []byte {
	in, err := png.Decode(bytes.NewReader(raw))
	if err != nil {
		return raw
	}
	seen := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(in.At(x, y)).(color.RGBA) }
	b := in.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			seen[at(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(seen), func(a, b color.RGBA) int { return cmp.Compare(seen[b], seen[a]) })
	palette := color.Palette{}
	for _, c := range colours[:min(256, len(colours))] {
		palette = append(palette, c)
	}
	nearest := map[color.RGBA]uint8{}
	for _, c := range colours {
		nearest[c] = uint8(palette.Index(c))
	}
	small := image.NewPaletted(b, palette)
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			small.SetColorIndex(x, y, nearest[at(x, y)])
		}
	}
	var out bytes.Buffer
	if (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small) != nil {
		return raw
	}
	return out.Bytes()
}

// complaints are what pages said on the console: errors of scripts, breaches of
// the security policy.
func (b *browser) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.console
}
