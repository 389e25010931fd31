package web

import (
	"fmt"
	"os"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// situation is a pool to look at, and the objects whose pages to look at.
type situation struct {
	name                  string
	make                  func(*testing.T) *world
	lease, gpu, box, host string
}

var situations = []situation{
	{"empty", func(t *testing.T) *world { return newWorld(t, 0) }, "", "", "", ""},
	{"normal", normalWorld, "l-1", "r1-nv/0", "r1-nv", "h01"},
	{"failing", func(t *testing.T) *world { w, _ := busyWorld(t); return w }, "l-3", "r4-sw/5", "r1-sw", "h10"},
	{"all-lost", lostWorld, "l-1", "r1-nv/0", "r1-nv", "h01"},
	{"very-large", veryLargeWorld, "l-1", "box-001/0", "box-001", "host-00001"},
}

// normalWorld has a pool that works: a third of its GPUs is leased.
func normalWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, 0,
		box("r1-nv", "r1", "DX200", nvlink, 8, 0), box("r1-sw", "r1", "DX100", pcie, 8, 0), box("r2-nv", "r2", "DX200", nvlink, 8, 0),
		host("h01", "r1", 8), host("h02", "r1", 8), host("h03", "r2", 8))
	w.lease(&dxpuv1.LeaseSpec{Count: 4, Model: "DX200", Nvlink: dxpuv1.Preference_PREFERENCE_REQUIRED, HostId: "h01", Tenant: "vision"})
	w.lease(&dxpuv1.LeaseSpec{Count: 2, Model: "DX100", HostId: "h02", Tenant: "speech"})
	w.lease(&dxpuv1.LeaseSpec{Count: 2, Model: "DX200", HostId: "h03", Tenant: "research"})
	return w
}

// lostWorld is normalWorld after its network has failed: no node reports.
func lostWorld(t *testing.T) *world {
	t.Helper()
	w := normalWorld(t)
	w.mu.Lock()
	for _, n := range w.all {
		n.silent = true
	}
	w.mu.Unlock()
	w.advance(3 * lostAfter)
	w.settle()
	return w
}

// veryLargeWorld has 1,248 GPUs in 156 boxes. With DXPU_SCREENSHOTS it has more hosts, so
// that the pool has 22,500 nodes.
func veryLargeWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, 0)
	hosts := 200
	if os.Getenv("DXPU_SCREENSHOTS") != "" {
		hosts = 22_500 - 156
	}
	for i := range 156 {
		w.add(box(fmt.Sprintf("box-%03d", i+1), fmt.Sprintf("rack-%02d", 1+i/12), "DX200", nvlink, 8, 0))
	}
	for i := range hosts {
		n := host(fmt.Sprintf("host-%05d", i+1), fmt.Sprintf("rack-%02d", 1+i*13/hosts), 8)
		n.deaf = i >= 200 // it gets no lease, and a watch of each would be too many open files
		w.add(n)
	}
	w.round()
	for i := range 40 {
		w.create(&dxpuv1.LeaseSpec{Count: uint32(1 + i%8), HostId: fmt.Sprintf("host-%05d", 1+5*i), Tenant: "vision"})
	}
	w.round()
	w.round()
	return w
}

// browserSituations looks at all pages in five situations, on a desktop and on a phone,
// light and dark: none is wider than the window, and all text can be read.
func browserSituations(t *testing.T, b *browser) {
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			w := s.make(t)
			paths := map[string]string{"pool": "/", "leases": "/ui/leases", "hosts": "/ui/hosts", "gpus": "/ui/gpus", "tenants": "/ui/tenants", "events": "/ui/events"}
			if s.lease != "" {
				paths["lease"], paths["gpu"] = "/ui/leases/"+s.lease, "/ui/gpus/"+s.gpu
				paths["box"], paths["host"] = "/ui/boxes/"+s.box, "/ui/hosts/"+s.host
			}
			p := b.open(t, w.url+"/", 1400, 900)
			for name, path := range paths {
				for _, size := range [][2]int{{1400, 900}, {390, 844}} {
					p.size(size[0], size[1])
					p.scheme("light")
					p.goTo(w.url + path)
					if p.eval(`document.querySelector(".failure") !== null`) == true {
						t.Errorf("%s: %v", path, p.eval(`document.querySelector("main").textContent`))
					}
					for _, scheme := range []string{"light", "dark"} {
						p.scheme(scheme)
						if over := p.eval(`document.documentElement.scrollWidth - document.documentElement.clientWidth`); over != 0.0 {
							t.Errorf("%s: the page is %v pixels wider than a window of %d", path, over, size[0])
						}
						if bad := p.eval(contrast); bad != "" {
							t.Errorf("%s, %s: too little contrast: %v", path, scheme, bad)
						}
						p.screenshot(fmt.Sprintf("%s-%s-%d-%s", s.name, name, size[0], scheme))
					}
				}
			}
		})
	}
}
