package vm_test

import (
	"path/filepath"
	"strings"
	"testing"

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
