package web

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browserTimeout bounds each call to the browser and each wait for a condition.
const browserTimeout = 20 * time.Second

// browser is a headless Chromium.
type browser struct {
	ctx context.Context //nolint:containedctx // chromedp keeps the browser in it

	mu      sync.Mutex
	console []string
}

// findChromium returns the path of a Chromium. It skips the test where there is none.
func findChromium(t *testing.T) string {
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
	ctx, stop := chromedp.NewContext(context.WithoutCancel(t.Context()), chromedp.WithErrorf(t.Logf), chromedp.WithAllocatorOptions(
		chromedp.ExecPath(findChromium(t)), chromedp.NoSandbox, chromedp.DisableGPU, // NoSandbox: the tests may run as root
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
	))
	t.Cleanup(stop)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(ctx, browserTimeout)
		defer cancel()
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("the browser did not close: %v", err)
		}
	})
	return &browser{ctx: ctx}
}

// record keeps the errors that a tab reports: uncaught exceptions and violations
// of the security policy. The tests check the answers of the network themselves.
func (b *browser) record(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.console = append(b.console, (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error())
	case *log.EventEntryAdded:
		if e.Entry.Source != log.EntrySourceNetwork && e.Entry.Level != log.EntryLevelVerbose {
			b.console = append(b.console, fmt.Sprintf("%s: %s", e.Entry.Source, e.Entry.Text))
		}
	}
}

// consoleErrors returns the errors that all tabs have reported so far.
func (b *browser) consoleErrors() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.console)
}

// tab is a page in the browser.
type tab struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // chromedp keeps the tab in it
}

func (b *browser) open(t *testing.T, url string, width, height int) *tab {
	t.Helper()
	ctx, closeTab := chromedp.NewContext(b.ctx, chromedp.WithListener(b.record))
	t.Cleanup(closeTab)
	p := &tab{t: t, ctx: ctx}
	if err := chromedp.Do(ctx); err != nil { // creates the tab; it lives as long as this context
		t.Fatal(err)
	}
	p.size(width, height)
	p.goTo(url)
	return p
}

// run runs an action in the tab and returns its result. A failure ends the test.
func run[T any](p *tab, action chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, browserTimeout)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		p.t.Fatal(err)
	}
	return v
}

// size sets the size of the viewport in CSS pixels; below 600 it is that of a phone.
func (p *tab) size(width, height int) {
	p.t.Helper()
	var options []chromedp.EmulateViewportOption
	if width < 600 {
		options = append(options, chromedp.EmulateMobile)
	}
	run(p, chromedp.EmulateViewport(int64(width), int64(height), options...))
}

// goTo loads a page and returns after its load event, when its script has run.
func (p *tab) goTo(url string) {
	p.t.Helper()
	run(p, chromedp.Navigate(url))
}

// withoutPolling leaves the pages that the tab loads from now on to their streams.
func (p *tab) withoutPolling() {
	p.t.Helper()
	params := page.AddScriptToEvaluateOnNewDocumentParams{Source: "window.setInterval = () => 0"}
	if _, err := chromedp.Call(p.ctx, page.AddScriptToEvaluateOnNewDocument, params); err != nil {
		p.t.Fatal(err)
	}
}

// follow runs an action that leads to another page and waits until that is loaded.
func (p *tab) follow(action chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	run(p, chromedp.WaitEvent(page.LoadEventFired, nil, action))
}

// click clicks on the first element that a CSS selector matches.
func click(selector string) chromedp.Action[chromedp.Void] {
	return chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.querySelector(%q).click()", selector))
}

// scheme sets the preferred colour scheme: "light" or "dark".
func (p *tab) scheme(name string) {
	p.t.Helper()
	params := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, params); err != nil {
		p.t.Fatal(err)
	}
}

// eval evaluates a script in the page and returns its value.
func (p *tab) eval(script string) any {
	p.t.Helper()
	return run(p, chromedp.Evaluate[any](script))
}

// wait waits until a condition of the page is true and returns how long that took.
// (chromedp.Poll builds a function from a string, which the pages' security policy forbids.)
func (p *tab) wait(what, condition string) time.Duration {
	p.t.Helper()
	begin := time.Now()
	met := run(p, chromedp.Evaluate[bool](fmt.Sprintf(`new Promise((done) => {
		const end = Date.now() + %d;
		const look = () => { const met = (%s) === true; met || Date.now() > end ? done(met) : setTimeout(look, 15); };
		look();
	})`, (browserTimeout-time.Second).Milliseconds(), condition), chromedp.EvalAwaitPromise))
	if !met {
		p.t.Fatalf("%s: not in time: %s is %v", what, condition, p.eval(condition))
	}
	return time.Since(begin)
}

// key presses a key; kb has the names of those without a character.
func (p *tab) key(key string) {
	p.t.Helper()
	run(p, chromedp.KeyEvent(key))
}

// enterText types into the focused element.
func (p *tab) enterText(text string) {
	p.t.Helper()
	if _, err := chromedp.Call(p.ctx, input.InsertText, input.InsertTextParams{Text: text}); err != nil {
		p.t.Fatal(err)
	}
}

// screenshot takes a picture of the viewport and writes it to the directory
// that DXPU_SCREENSHOTS names.
func (p *tab) screenshot(name string) {
	p.t.Helper()
	dir := os.Getenv("DXPU_SCREENSHOTS")
	if dir == "" {
		dir = p.t.TempDir()
	}
	raw := run(p, chromedp.CaptureScreenshot())
	if len(raw) < 10_000 {
		p.t.Fatalf("%s: a picture of %d bytes shows an empty page", name, len(raw))
	}
	if strings.HasPrefix(name, "web-") { // for the repository
		raw = paletted(raw)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), raw, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// paletted returns a PNG in its 256 most frequent colours, which makes it smaller.
// The colours left out are shades at the edges of letters.
func paletted(raw []byte) []byte {
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
