package web

import (
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// TestBrowser checks the pages in a browser: live updates, keyboard, sizes and themes.
// With DXPU_SCREENSHOTS=DIRECTORY it keeps the screenshots.
func TestBrowser(t *testing.T) {
	b := startBrowser(t)
	w, replaced := busyWorld(t)
	t.Run("screenshots for the documentation", func(t *testing.T) {
		p := b.open(t, w.url+"/", 1400, 900)
		for _, scheme := range []string{"light", "dark"} {
			p.scheme(scheme)
			p.wait("the stream", `document.getElementById("status").dataset.state === "live"`)
			p.screenshot("web-" + scheme) // docs/web-light.png, docs/web-dark.png
		}
	})
	t.Run("live pool", func(t *testing.T) { browserLivePool(t, b, w) })
	t.Run("live events", func(t *testing.T) { browserLiveEvents(t, b, w) })
	t.Run("keyboard", func(t *testing.T) { browserKeyboard(t, b, w) })
	t.Run("keys", func(t *testing.T) { browserKeys(t, b, w) })
	t.Run("cordon", func(t *testing.T) { browserCordon(t, b, w) })
	t.Run("forms", func(t *testing.T) { browserForms(t, b, w) })
	t.Run("double click", func(t *testing.T) { browserDoubleClick(t, b, w) })
	t.Run("theme", func(t *testing.T) { browserTheme(t, b, w) })
	t.Run("sign in", func(t *testing.T) { browserSignIn(t, b, w) })
	t.Run("hostile names", func(t *testing.T) { browserHostile(t, b) })
	t.Run("large pool", func(t *testing.T) { browserLarge(t, b) })
	t.Run("empty pool", func(t *testing.T) { browserEmpty(t, b) })
	t.Run("situations", func(t *testing.T) { browserSituations(t, b) })
	t.Run("contrast", func(t *testing.T) { browserContrast(t, b, w) })
	t.Run("screenshots", func(t *testing.T) { browserScreenshots(t, b, w, replaced) })
	for _, c := range b.consoleErrors() {
		t.Errorf("console: %s", c)
	}
}

// A new lease appears in the map and the recent events by the stream alone. The page is
// not reloaded and keeps the focus.
func browserLivePool(t *testing.T, b *browser, w *world) {
	p := b.open(t, w.url+"/", 1400, 900)
	p.withoutPolling()
	p.goTo(w.url + "/")
	p.wait("the stream", `document.getElementById("status").dataset.state === "live"`)
	p.eval(`window.same = true; document.querySelector('a[href="/ui/gpus/r3-nv/4"]').focus()`)
	before := int(p.eval(`document.querySelectorAll(".racks a.bound").length`).(float64))
	id := w.lease(&dxpuv1.LeaseSpec{Count: 4, Model: "DX200", HostId: "h07", Tenant: "vision"})
	took := p.wait("the lease's event", `document.querySelector(".events").textContent.includes("`+id+` is active")`)
	t.Logf("an event was in the page %v after it had happened", took)
	if after := int(p.eval(`document.querySelectorAll(".racks a.bound").length`).(float64)); after != before+4 {
		t.Errorf("%d GPUs are drawn as bound, want %d", after, before+4)
	}
	if p.eval(`window.same && document.activeElement.getAttribute("href")`) != "/ui/gpus/r3-nv/4" {
		t.Error("the page was reloaded or lost the focus")
	}
}

func browserLiveEvents(t *testing.T, b *browser, w *world) {
	p := b.open(t, w.url+"/ui/events", 1200, 900)
	p.wait("the stream", `document.getElementById("status").dataset.state === "live"`)
	cordon := func(why string) {
		w.cordon(&dxpuv1.Target{Target: &dxpuv1.Target_HostId{HostId: "h06"}}, why)
	}
	log := `document.querySelector("#log tbody").textContent`
	cordon("first <b>reason</b>")
	p.wait("the event", log+`.includes("first <b>reason</b>")`)
	p.eval(`document.getElementById("pause").click()`)
	cordon("second reason")
	// Other events of the pool count, too, as on a busy machine those of nodes that report late.
	p.wait("the count", `/[1-9]\d* new/.test(document.getElementById("waiting").textContent)`)
	if p.eval(log+`.includes("second reason")`) == true {
		t.Error("a paused page was updated")
	}
	p.eval(`document.getElementById("pause").click()`)
	p.wait("the event that waited", log+`.includes("second reason")`)
	if _, err := w.pool.Uncordon(t.Context(), connect.NewRequest(&dxpuv1.UncordonRequest{Target: &dxpuv1.Target{Target: &dxpuv1.Target_HostId{HostId: "h06"}}})); err != nil {
		t.Fatal(err)
	}
	p.wait("the last event", log+`.includes("takes new bindings again")`)
	// No event was added twice.
	if n := p.eval(`new Set([...document.querySelectorAll("#log tbody tr")].map(r => r.dataset.key)).size === document.querySelectorAll("#log tbody tr").length`); n != true {
		t.Error("the page has an event twice")
	}
}

// Each rack is one tab stop. Arrow keys move in the map, Enter opens the page of a GPU.
func browserKeyboard(t *testing.T, b *browser, w *world) {
	p := b.open(t, w.url+"/", 1400, 900)
	focus := func() string {
		s, _ := p.eval(`(document.activeElement.getAttribute("href") || document.activeElement.id || document.activeElement.nodeName)`).(string)
		return s
	}
	p.key(kb.Tab)
	if got := focus(); got != "#main" {
		t.Fatalf("the first tab stop is %s, want the link to the content", got)
	}
	if p.eval(`getComputedStyle(document.activeElement).outlineStyle`) == "none" {
		t.Error("the focus is not visible")
	}
	p.key(kb.Enter)
	p.wait("the skip", `document.activeElement.id === "main" || location.hash === "#main"`)
	stops := 0
	for p.eval(`document.activeElement.matches("[data-grid] a")`) != true && stops < 60 {
		p.key(kb.Tab)
		stops++
	}
	if got := focus(); got != "/ui/gpus/r1-nv/0" {
		t.Fatalf("the first tab stop in the map is %s after %d tabs", got, stops)
	}
	for _, step := range []struct{ name, key, want string }{
		{"ArrowRight", kb.ArrowRight, "/ui/gpus/r1-nv/1"},
		{"End", kb.End, "/ui/gpus/r1-nv/7"},
		{"ArrowDown", kb.ArrowDown, "/ui/gpus/r1-sw/7"},
		{"ArrowUp", kb.ArrowUp, "/ui/gpus/r1-nv/7"},
		{"ArrowRight", kb.ArrowRight, "/ui/boxes/r1-sw"},
		{"ArrowLeft", kb.ArrowLeft, "/ui/gpus/r1-nv/7"},
		{"Home", kb.Home, "/ui/boxes/r1-nv"},
		{"ArrowRight", kb.ArrowRight, "/ui/gpus/r1-nv/0"},
	} {
		p.key(step.key)
		if got := focus(); got != step.want {
			t.Fatalf("%s leads to %s, want %s", step.name, got, step.want)
		}
	}
	p.key(kb.Tab)
	if got := focus(); !strings.HasPrefix(got, "/?rack=r2") {
		t.Errorf("the tab stop after a rack is %s, want the next rack", got)
	}
	p.eval(`document.querySelector('a[href="/ui/gpus/r1-nv/0"]').focus()`)
	p.follow(chromedp.KeyEvent(kb.Enter))
	if at := p.eval(`location.pathname`); at != "/ui/gpus/r1-nv/0" {
		t.Errorf("Enter on a GPU leads to %v", at)
	}
}

// An operator cordons a GPU with a reason, and uncordons it.
func browserCordon(t *testing.T, b *browser, w *world) {
	p := b.open(t, w.url+"/ui/gpus/r4-nv/7", 1200, 900)
	p.eval(`document.querySelector(".actions summary").click()`)
	p.eval(`document.querySelector("input[name=reason]").value = "a \"test\""`)
	p.follow(click("button[value=cordon]"))
	if s := p.eval(`document.querySelector("main").textContent`).(string); !strings.Contains(s, `Cordoned: a "test"`) || !strings.Contains(s, "r4-nv/7 takes no new bindings.") {
		t.Errorf("the page contains %s", s)
	}
	p.follow(click("button[value=uncordon]"))
	if p.eval(`document.querySelector(".notice") !== null`) != true {
		t.Error("the page does not confirm the uncordon")
	}
	g, err := w.pool.GetGPU(t.Context(), connect.NewRequest(&dxpuv1.GetGPURequest{GpuId: "r4-nv/7"}))
	if err != nil || g.Msg.Gpu.Cordoned {
		t.Errorf("the GPU is cordoned: %v, %v", g, err)
	}
}

// A form that is open stays itself when others appear above it or go.
func browserForms(t *testing.T, b *browser, w *world) {
	id := w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "DX200", HostId: "h07", Tenant: "vision"})
	p := b.open(t, w.url+"/ui/leases/"+id, 1200, 900)
	p.withoutPolling()
	p.goTo(w.url + "/ui/leases/" + id)
	p.wait("the stream", `document.getElementById("status").dataset.state === "live"`)
	forms := `[...document.querySelectorAll(".actions details")].map(d => d.querySelector("summary").textContent + (d.open ? " open" : "")).join()`
	p.eval(`document.querySelector(".actions summary").click()`)
	if got := p.eval(forms); got != "Delete… open" {
		t.Fatalf("the forms are %v", got)
	}
	w.settle() // the lease becomes active
	p.wait("the form that resizes it", forms+`.includes("Resize…")`)
	if got := p.eval(forms).(string); !strings.Contains(got, "Delete… open") || strings.Count(got, " open") != 1 {
		t.Errorf("the forms are %s", got)
	}
	p.eval(`document.querySelector("button[value=delete]").click()`)
	w.settle()
}

// A double click on the button of the form makes one lease.
func browserDoubleClick(t *testing.T, b *browser, w *world) {
	count := func() int {
		res, err := w.pool.ListLeases(t.Context(), connect.NewRequest(&dxpuv1.ListLeasesRequest{IncludeEnded: true}))
		if err != nil {
			t.Fatal(err)
		}
		return len(res.Msg.Leases)
	}
	before := count()
	p := b.open(t, w.url+"/ui/leases", 1200, 900)
	p.eval(`document.querySelector(".actions summary").click()`)
	p.eval(`document.querySelector("form input[name=host]").value = "h08"`)
	p.follow(chromedp.Evaluate[chromedp.Void](`document.querySelector("button[value=create]").click(); document.querySelector("button[value=create]").click()`))
	if at := p.eval(`location.pathname`).(string); !strings.HasPrefix(at, "/ui/leases/l-") || count() != before+1 {
		t.Errorf("a double click leads to %s and makes %d leases", at, count()-before)
	}
}

// The theme follows the system until the reader chooses one, and then stays.
func browserTheme(t *testing.T, b *browser, w *world) {
	p := b.open(t, w.url+"/", 1400, 900)
	colour := func() string { return p.eval(`getComputedStyle(document.documentElement).backgroundColor`).(string) }
	p.scheme("light")
	light := colour()
	p.scheme("dark")
	dark := colour()
	if light == dark {
		t.Fatalf("light and dark are both %s", light)
	}
	press := func(want, name string) {
		t.Helper()
		p.eval(`document.querySelector("#theme button").click()`)
		if got := colour(); got != want {
			t.Errorf("%s: the page is %s, want %s", name, got, want)
		}
	}
	press(light, "light although the system is dark")
	press(dark, "dark")
	p.scheme("light")
	p.goTo(w.url + "/ui/hosts")
	if got := colour(); got != dark {
		t.Errorf("the next page is %s, want %s", got, dark)
	}
	press(light, "auto again")
}

// No page is wider than the window. The screenshots are for review.
func browserScreenshots(t *testing.T, b *browser, w *world, replaced string) {
	p := b.open(t, w.url+"/", 1400, 900)
	for _, page := range []struct {
		name, path    string
		width, height int
	}{
		{"pool", "/", 1400, 1180},
		{"pool-phone", "/", 400, 2300},
		{"rack", "/?rack=r2&show=bound", 1400, 900},
		{"leases", "/ui/leases", 1300, 900},
		{"leases-phone", "/ui/leases", 400, 1200},
		{"lease", "/ui/leases/" + replaced, 1300, 1800},
		{"lease-phone", "/ui/leases/" + replaced, 400, 2200},
		{"hosts", "/ui/hosts", 1300, 700},
		{"host", "/ui/hosts/h03", 1300, 1200},
		{"host-phone", "/ui/hosts/h03", 400, 1800},
		{"box", "/ui/boxes/r2-nv", 1300, 1200},
		{"gpus", "/ui/gpus", 1300, 1200},
		{"gpu", "/ui/gpus/r2-nv/5", 1300, 1200},
		{"gpu-phone", "/ui/gpus/r2-nv/5", 400, 2000},
		{"events", "/ui/events", 1300, 900},
		{"tenants", "/ui/tenants", 1300, 600},
		{"signin", "/ui/signin", 800, 500},
		{"missing", "/ui/leases/l-404", 800, 500},
	} {
		p.size(page.width, page.height)
		for _, scheme := range []string{"light", "dark"} {
			p.scheme(scheme)
			p.goTo(w.url + page.path)
			if p.eval(`document.body.hasAttribute("data-live")`) == true {
				p.wait("the stream", `document.getElementById("status").dataset.state === "live"`)
			}
			if over := p.eval(`document.documentElement.scrollWidth - document.documentElement.clientWidth`); over != 0.0 {
				t.Errorf("%s: the page is %v pixels wider than the window", page.name, over)
			}
			p.screenshot(page.name + "-" + scheme)
		}
	}
}

// Keys lead to the search, to pages, and to the list of keys; text in a field does not.
func browserKeys(t *testing.T, b *browser, w *world) {
	p := b.open(t, w.url+"/", 1280, 900)
	p.key("?")
	p.wait("the list of keys", `document.getElementById("keys").open`)
	p.key("?")
	p.wait("no list of keys", `!document.getElementById("keys").open`)
	p.key("/")
	p.wait("the search", `document.activeElement.id === "search"`)
	p.eval(`document.getElementById("search").value = ""`) // the driver inserts the key's character, which browsers do not
	p.enterText("gl?r2-nv/5")
	if got := p.eval(`document.getElementById("search").value + document.getElementById("keys").open + location.pathname`); got != "gl?r2-nv/5false/" {
		t.Errorf("keys in the search: %v", got)
	}
	p.goTo(w.url + "/")
	p.key("g")
	p.follow(chromedp.KeyEvent("l"))
	p.wait("the page of leases", `location.pathname === "/ui/leases"`)
}

// A tenant signs in by keyboard, sees its own leases, and signs out.
func browserSignIn(t *testing.T, b *browser, w *world) {
	token := w.token(dxpuv1.Role_ROLE_TENANT, "research")
	p := b.open(t, w.url+"/ui/signin?next=/ui/leases", 800, 600)
	p.wait("the focus", `document.activeElement.id === "token"`)
	p.enterText(token)
	p.follow(chromedp.KeyEvent(kb.Enter))
	if at := p.eval(`location.pathname`); at != "/ui/leases" {
		t.Fatalf("signing in leads to %v, want /ui/leases", at)
	}
	if s := p.eval(`document.body.textContent`).(string); !strings.Contains(s, "tenant") || !strings.Contains(s, "Sign out") || strings.Contains(s, "speech") {
		t.Errorf("the tenant sees %s", s)
	}
	if s := p.eval(`document.cookie`).(string); strings.Contains(s, token) || strings.Contains(s, formCookie) {
		t.Errorf("scripts can read %s", s)
	}
	p.wait("the stream", `document.getElementById("status").dataset.state === "live"`)
	p.screenshot("signed-in-light")
	p.follow(click(`form[action="/ui/signout"] button`))
	if at := p.eval(`location.pathname`); at != "/ui/signin" {
		t.Fatalf("signing out leads to %v, want /ui/signin", at)
	}
	// Further requests have no token; this manager answers them.
	p.goTo(w.url + "/ui/leases")
	if s := p.eval(`document.body.textContent`).(string); strings.Contains(s, "Sign out") {
		t.Error("the browser is still signed in")
	}
}

// Scripts and tags in names, reasons and details are shown as text: in a page that is
// loaded, in one that updates itself, and in an event from the stream.
func browserHostile(t *testing.T, b *browser) {
	w := newWorld(t, 0, box("b1", hostile, hostile, nvlink, 2, 1), host("h1", hostile, 4))
	lease := w.lease(&dxpuv1.LeaseSpec{Count: 1, HostId: "h1"})
	p := b.open(t, w.url+"/", 1280, 900)
	for _, path := range []string{"/", "/ui/events", "/ui/boxes/b1", "/ui/gpus/b1/1", "/ui/leases/" + lease, "/ui/hosts", "/ui/gpus?model=" + escape(hostile)} {
		p.goTo(w.url + path)
		p.eval(`window.pwned = false; window.alert = () => { window.pwned = true }`)
		p.wait("the stream", `document.getElementById("status").dataset.state === "live"`)
		w.fail("b1", 1, dxpuv1.Health_HEALTH_FAILED, hostile, &dxpuv1.DeviceError{Code: 1, Count: 1, Detail: hostile})
		w.cordon(&dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: "b1/1"}}, hostile+path)
		w.settle()
		if path == "/" || path == "/ui/events" {
			p.wait("the event", `document.querySelector(".events").textContent.includes(`+"`"+hostile+path+"`"+`)`)
		}
		if got := p.eval(`window.pwned || document.querySelectorAll("#content img, #content script").length > 0`); got != false {
			t.Errorf("%s: text from a node became elements of the page", path)
		}
		w.uncordon(&dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: "b1/1"}})
	}
}

func (w *world) uncordon(target *dxpuv1.Target) {
	w.t.Helper()
	if _, err := w.pool.Uncordon(w.t.Context(), connect.NewRequest(&dxpuv1.UncordonRequest{Target: target})); err != nil {
		w.t.Fatal(err)
	}
}

// 512 GPUs in 64 boxes in three racks.
func browserLarge(t *testing.T, b *browser) {
	w := idleWorld(t, 64, 22)
	for i := range 20 {
		w.create(&dxpuv1.LeaseSpec{Count: uint32(1 + i%8), HostId: fmt.Sprintf("host-%02d", 1+3*i), Tenant: "research"})
	}
	w.settle()
	p := b.open(t, w.url+"/", 1280, 900)
	p.wait("the stream", `document.getElementById("status").dataset.state === "live"`)
	if n := p.eval(`document.querySelectorAll(".racks a.slot").length`); n != 512.0 {
		t.Errorf("%v slots are drawn, want 512", n)
	}
	w.create(&dxpuv1.LeaseSpec{Count: 8, HostId: "host-64", Tenant: "research"})
	took := p.wait("the lease", `document.querySelectorAll(".racks a.bound").length === 90`)
	t.Logf("a lease shows among 512 GPUs %v after it was made", took)
	for _, size := range [][2]int{{1280, 2400}, {400, 3000}} {
		p.size(size[0], size[1])
		if over := p.eval(`document.documentElement.scrollWidth - document.documentElement.clientWidth`); over != 0.0 {
			t.Errorf("the page is %v pixels wider than a window of %d", over, size[0])
		}
		p.screenshot(fmt.Sprintf("large-%d-light", size[0]))
	}
}

func browserEmpty(t *testing.T, b *browser) {
	w := newWorld(t, 0)
	p := b.open(t, w.url+"/", 1280, 800)
	for _, page := range []string{"", "ui/leases", "ui/hosts", "ui/gpus", "ui/tenants", "ui/events"} {
		p.goTo(w.url + "/" + page)
		p.screenshot("empty-" + strings.TrimPrefix(page, "ui/"))
	}
}

// contrast returns the elements whose text has a contrast below 4.5:1 to its background
// (WCAG 2.2, 1.4.3), if the background is one colour.
const contrast = `(() => {
  const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const out = new Set();
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility() || e.closest(".quiet, .skip, option, .dimmed")) continue;
    let on = e, back = parse(getComputedStyle(on).backgroundColor);
    while (back[3] === 0 && on.parentElement) back = parse(getComputedStyle(on = on.parentElement).backgroundColor);
    const a = light(parse(getComputedStyle(e).color)), b = light(back), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) out.add(e.nodeName + "." + e.className + " " + ratio.toFixed(2));
  }
  return [...out].join("; ");
})()`

func browserContrast(t *testing.T, b *browser, w *world) {
	p := b.open(t, w.url+"/", 1280, 900)
	for _, path := range []string{"/", "/ui/leases", "/ui/hosts/h03", "/ui/gpus", "/ui/gpus/r2-nv/5", "/ui/tenants", "/ui/events", "/ui/signin"} {
		p.goTo(w.url + path)
		for _, scheme := range []string{"light", "dark"} {
			p.scheme(scheme)
			if bad := p.eval(contrast); bad != "" {
				t.Errorf("%s, %s: too little contrast: %v", path, scheme, bad)
			}
		}
	}
}
