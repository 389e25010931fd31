package web

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// What a browser makes of the pages: they change by themselves, obey the
// keyboard, fit a phone, and come in light and dark. DXPU_SCREENSHOTS=DIRECTORY
// keeps the pictures.
func TestBrowser(t *testing.T) {
	b := startBrowser(t)
	w, replaced := livelyWorld(t)
	t.Run("picture for the documentation", func(t *testing.T) {
		p := b.open(t, w.url+"/", 1400, 900)
		for _, scheme := range []string{"light", "dark"} {
			p.scheme(scheme)
			p.wait("the stream", `document.getElementById("status").dataset.state === "live"`)
			p.picture("web-" + scheme) // docs/web-light.png, docs/web-dark.png
		}
	})
	t.Run("live pool", func(t *testing.T) { browserLivePool(t, b, w) })
	t.Run("live events", func(t *testing.T) { browserLiveEvents(t, b, w) })
	t.Run("keyboard", func(t *testing.T) { browserKeyboard(t, b, w) })
	t.Run("cordon", func(t *testing.T) { browserCordon(t, b, w) })
	t.Run("theme", func(t *testing.T) { browserTheme(t, b, w) })
	t.Run("pictures", func(t *testing.T) { browserPictures(t, b, w, replaced) })
	for _, c := range b.complaints() {
		t.Errorf("a page complained: %s", c)
	}
}

// A lease that is made shows in the map and the last events within a second,
// without a reload, and what the reader focused stays focused.
func browserLivePool(t *testing.T, b *browser, w *world) {
	p := b.open(t, w.url+"/", 1400, 900)
	p.wait("the stream", `document.getElementById("status").dataset.state === "live"`)
	p.eval(`window.same = true; document.querySelector('a[href="/ui/gpus/r3-nv/4"]').focus()`)
	before := int(p.eval(`document.querySelectorAll(".racks a.bound").length`).(float64))
	id := w.lease(&dxpuv1.LeaseSpec{Count: 4, Model: "DX200", HostId: "h07", Tenant: "vision"})
	began := time.Now()
	p.wait("the lease's event", `document.querySelector(".events").textContent.includes("`+id+` is active")`)
	took := time.Since(began)
	t.Logf("an event was in the page %v after it had happened", took)
	if took > 3*time.Second { // a second, and room for a machine that does other things
		t.Errorf("the change took %v to show", took)
	}
	if after := int(p.eval(`document.querySelectorAll(".racks a.bound").length`).(float64)); after != before+4 {
		t.Errorf("%d GPUs are drawn as bound, want %d", after, before+4)
	}
	if p.eval(`window.same && document.activeElement.getAttribute("href")`) != "/ui/gpus/r3-nv/4" {
		t.Error("the page was loaded again or lost its focus")
	}
}

func browserLiveEvents(t *testing.T, b *browser, w *world) {
	p := b.open(t, w.url+"/ui/events", 1200, 900)
	p.wait("the stream", `document.getElementById("status").dataset.state === "live"`)
	cordon := func(why string) {
		w.cordon(&dxpuv1.Target{Target: &dxpuv1.Target_HostId{HostId: "h06"}}, why)
	}
	top := `document.querySelector("#log tbody tr").textContent`
	cordon("first <b>reason</b>")
	p.wait("the event", top+`.includes("first <b>reason</b>")`)
	p.eval(`document.getElementById("pause").click()`)
	cordon("second reason")
	p.wait("the count", `document.getElementById("waiting").textContent.includes("1 new")`)
	if p.eval(top+`.includes("second reason")`) == true {
		t.Error("a page that was paused went on")
	}
	p.eval(`document.getElementById("pause").click()`)
	p.wait("the event that waited", top+`.includes("second reason")`)
	if _, err := w.pool.Uncordon(t.Context(), connect.NewRequest(&dxpuv1.UncordonRequest{Target: &dxpuv1.Target{Target: &dxpuv1.Target_HostId{HostId: "h06"}}})); err != nil {
		t.Fatal(err)
	}
	p.wait("the last event", top+`.includes("takes new bindings again")`)
	// A page that was not visible for a while has missed nothing.
	if n := p.eval(`new Set([...document.querySelectorAll("#log tbody tr")].map(r => r.dataset.key)).size === document.querySelectorAll("#log tbody tr").length`); n != true {
		t.Error("an event is there twice")
	}
}

// The map is one stop of the tab key; arrows go through it, Enter opens a GPU.
func browserKeyboard(t *testing.T, b *browser, w *world) {
	p := b.open(t, w.url+"/", 1400, 900)
	focus := func() string {
		s, _ := p.eval(`(document.activeElement.getAttribute("href") || document.activeElement.id || document.activeElement.nodeName)`).(string)
		return s
	}
	p.key("Tab")
	if got := focus(); got != "#main" {
		t.Fatalf("the first stop is %s, want the link that skips to the content", got)
	}
	if p.eval(`getComputedStyle(document.activeElement).outlineStyle`) == "none" {
		t.Error("the focus does not show")
	}
	p.key("Enter")
	p.wait("the skip", `document.activeElement.id === "main" || location.hash === "#main"`)
	stops := 0
	for p.eval(`document.activeElement.matches("[data-grid] a")`) != true && stops < 60 {
		p.key("Tab")
		stops++
	}
	if got := focus(); got != "/ui/gpus/r1-nv/0" {
		t.Fatalf("the first stop in the map is %s after %d tabs", got, stops)
	}
	for _, step := range []struct{ key, want string }{
		{"ArrowRight", "/ui/gpus/r1-nv/1"},
		{"End", "/ui/gpus/r1-nv/7"},
		{"ArrowDown", "/ui/gpus/r1-sw/7"},
		{"ArrowUp", "/ui/gpus/r1-nv/7"},
		{"ArrowRight", "/ui/boxes/r1-sw"},
		{"ArrowLeft", "/ui/gpus/r1-nv/7"},
		{"Home", "/ui/boxes/r1-nv"},
		{"ArrowRight", "/ui/gpus/r1-nv/0"},
	} {
		p.key(step.key)
		if got := focus(); got != step.want {
			t.Fatalf("%s leads to %s, want %s", step.key, got, step.want)
		}
	}
	p.key("Tab")
	if got := focus(); !strings.HasPrefix(got, "/?rack=r2") {
		t.Errorf("the stop after the map of a rack is %s, want the next rack", got)
	}
	p.eval(`document.querySelector('a[href="/ui/gpus/r1-nv/0"]').focus()`)
	p.key("Enter")
	p.wait("the GPU's page", `location.pathname === "/ui/gpus/r1-nv/0" && document.readyState === "complete"`)
}

// An operator cordons a GPU in two steps, with a reason, and takes it back.
func browserCordon(t *testing.T, b *browser, w *world) {
	p := b.open(t, w.url+"/ui/gpus/r4-nv/7", 1200, 900)
	p.eval(`document.querySelector(".actions summary").click()`)
	p.eval(`document.querySelector("input[name=reason]").value = "a \"test\""; window.left = true; document.querySelector("button[value=cordon]").click()`)
	p.wait("the page after", `!window.left && document.readyState === "complete" && document.querySelector(".said") !== null`)
	if s := p.eval(`document.querySelector("main").textContent`).(string); !strings.Contains(s, `Cordoned: a "test"`) || !strings.Contains(s, "r4-nv/7 takes no new bindings.") {
		t.Errorf("the page says %s", s)
	}
	p.eval(`window.left = true; document.querySelector("button[value=uncordon]").click()`)
	p.wait("the page after", `!window.left && document.readyState === "complete" && document.querySelector(".said") !== null`)
	g, err := w.pool.GetGPU(t.Context(), connect.NewRequest(&dxpuv1.GetGPURequest{GpuId: "r4-nv/7"}))
	if err != nil || g.Msg.Gpu.Cordoned {
		t.Errorf("the GPU is cordoned: %v, %v", g, err)
	}
}

// The theme is the system's until the reader chooses, and then stays.
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

// Nothing is wider than the window, at any width; and somebody looks at these.
func browserPictures(t *testing.T, b *browser, w *world, replaced string) {
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
			p.picture(page.name + "-" + scheme)
		}
	}
}
