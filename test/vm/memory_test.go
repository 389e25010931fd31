package vm_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// TestRefusedMemory attaches GPUs to VMs whose memory the proxy cannot share. The tenant
// reads the reason from the command that waits and in the lease, with the remedy.
func TestRefusedMemory(t *testing.T) {
	if !thorough() {
		t.Skip("set DXPU_VMTEST=thorough to run it")
	}
	for _, c := range []struct{ name, backend string }{
		{"memfd, share=off", "memory-backend-memfd,share=off"},
		{"anonymous memory", qemu.Anonymous},
		{"memory-backend-ram", "memory-backend-ram"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := boot(t, qemu.Spec{Slots: 1, Backend: c.backend})
			cl := &cluster{t: t, g: g}
			cl.startManager()
			cl.runBox()
			cl.start("host", "host", "--manager", cl.url, "--name", "host", "--slots", "1", "--qmp", g.qmp,
				"--socket-dir", g.dir, "--state-dir", filepath.Join(g.dir, "state"))
			cl.says("host +connected", "get", "hosts")
			cl.says("box-1 +[a-z-]+ +connected", "get", "boxes")
			const remedy = "memory-backend-memfd,id=mem,size=SIZE,share=on"
			waiting, err := cl.try("lease", "create", "--host", "host", "--wait", "--timeout", patience.String())
			if err == nil || !strings.Contains(waiting, remedy) {
				t.Errorf("the lease is created: %v\n%s", err, waiting)
			}
			if lease := cl.dxpu("describe", "lease", cl.lease()); !strings.Contains(lease, remedy) {
				t.Errorf("the lease does not say why:\n%s", lease)
			}
			g.healthy(t)
			seen(t, "%s", complaint(waiting))
		})
	}
}

// TestAddedMemory adds memory to a VM that has a GPU. Where the proxy cannot share it, the
// lease says so, QEMU and the guest go on, and the GPU works with the rest.
func TestAddedMemory(t *testing.T) {
	if !thorough() {
		t.Skip("set DXPU_VMTEST=thorough to run it")
	}
	for _, c := range []struct{ name, backend, says string }{
		{"private descriptor", "memory-backend-memfd", "maps its memory privately: give it share=on"},
		{"no descriptor", "memory-backend-ram", "the VM does not share its memory at 0x"},
		{"a file of a disk", "memory-backend-file", "not a file of tmpfs or hugetlbfs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := boot(t, qemu.Spec{Slots: 1, Args: []string{"-m", "1024M,slots=2,maxmem=4G"}})
			p := newPool(t, g, poolConfig{})
			p.attach(t, 0, 0)
			g.add(t, "good", map[string]any{"qom-type": "memory-backend-memfd", "share": true})
			g.useOne(t)
			if detail := p.host.Observe().Slots[0].Binding.GetDetail(); detail != "" {
				t.Errorf("with memory that is shared the host says %q", detail)
			}
			bad := map[string]any{"qom-type": c.backend, "share": false}
			if c.backend == "memory-backend-file" {
				bad["share"], bad["mem-path"] = true, filepath.Join(g.dir, "memory")
			}
			g.add(t, "bad", bad)
			p.awaitThat(t, 0, c.says, func(b *dxpuv1.ObservedBinding) bool { return strings.Contains(b.GetDetail(), c.says) })
			seen(t, "%s", p.host.Observe().Slots[0].Binding.GetDetail())
			g.useOne(t)
			p.detach(t, 0)
			g.healthy(t)
		})
	}
}

// add adds 128 MiB of memory, which the guest does not bring online.
func (g *guest) add(t *testing.T, name string, backend map[string]any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	backend["id"], backend["size"] = name, 128<<20
	if err := g.QMP().Execute(ctx, "object-add", backend, nil); err != nil {
		t.Fatal(err)
	}
	dimm := map[string]any{"driver": "pc-dimm", "id": "dimm-" + name, "memdev": name}
	if err := g.QMP().Execute(ctx, "device_add", dimm, nil); err != nil {
		t.Fatal(err)
	}
}
