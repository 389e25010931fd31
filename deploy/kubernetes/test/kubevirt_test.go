package test

import (
	"context"
	"encoding/xml"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
	"github.com/dxpu-project/dxpu/internal/vm/qmp"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// vmDomain is the part of a domain that becomes arguments of QEMU here, as libvirt makes them.
type vmDomain struct {
	Memory struct {
		Source struct {
			Type string `xml:"type,attr"`
		} `xml:"source"`
		Access struct {
			Mode string `xml:"mode,attr"`
		} `xml:"access"`
	} `xml:"memoryBacking"`
	Arguments []struct {
		Value string `xml:"value,attr"`
	} `xml:"http://libvirt.org/schemas/domain/qemu/1.0 commandline>arg"`
}

// TestKubeVirtHook: QEMU, started as libvirt starts it for the domain of the hook, has the GPU of
// the pool below a root port, and its firmware gives it addresses.
func TestKubeVirtHook(t *testing.T) {
	t.Parallel()
	program, err := qemu.LocateQEMU()
	if errors.Is(err, qemu.ErrNotInstalled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "dk") // sockets are in it: their paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	dxpu, driver, err := kubetest.BuildDxPU(dir)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := kubetest.StartPool(t.Context(), dxpu, dir, kubetest.PoolSpec{Boxes: 1, GPUs: 1, Hosts: 1, Slots: 1})
	if pool != nil {
		t.Cleanup(pool.Stop)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := pool.Command(t.Context(), "lease", "create", "--manager", pool.URL, "--host", "host-1", "--wait"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	leases, err := pool.API.Pool.ListLeases(t.Context(), connect.NewRequest(&dxpuv1.ListLeasesRequest{}))
	if err != nil || len(leases.Msg.Leases) != 1 || leases.Msg.Leases[0].State != dxpuv1.LeaseState_LEASE_STATE_ACTIVE {
		t.Fatalf("leases %v, %v", leases, err)
	}
	// The container of the VM has the socket of its first device there.
	sockets := filepath.Join(dir, "c", "devices")
	if err := os.MkdirAll(sockets, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "p", "host-1", "vm", "slot0.sock"), filepath.Join(sockets, "0.sock")); err != nil {
		t.Fatal(err)
	}
	const domain = `<domain type="kvm"><os><type machine="q35">hvm</type></os></domain>`
	hook := exec.CommandContext(t.Context(), driver, "kubevirt-hook", "--vmi", `{"spec":{"domain":{"resources":{"limits":{"dxpu.dev/gpu":"1"}}}}}`, "--domain", domain)
	hook.Env = append(os.Environ(), "DXPU_SOCKETS="+filepath.Dir(sockets))
	out, err := hook.Output()
	if err != nil {
		t.Fatal(err)
	}
	var d vmDomain
	if err := xml.Unmarshal(out, &d); err != nil || d.Memory.Source.Type != "memfd" || d.Memory.Access.Mode != "shared" {
		t.Fatalf("%v:\n%s", err, out)
	}
	args := []string{
		"-machine", "q35,memory-backend=ram", "-object", "memory-backend-memfd,id=ram,size=256M,share=on", "-m", "256M",
		"-accel", "tcg", "-nodefaults", "-no-user-config", "-display", "none",
	}
	for _, a := range d.Arguments {
		args = append(args, a.Value)
	}
	waitGPU(t, filepath.Join(dir, "qmp.sock"), program, args)
}

// waitGPU starts QEMU and waits until the firmware has found a GPU below a port of the pool's.
func waitGPU(t *testing.T, monitor, program string, args []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l, err := net.Listen("unix", monitor)
	if err != nil {
		t.Fatal(err)
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	defer l.Close()
	var errs strings.Builder
	cmd := exec.CommandContext(t.Context(), program, append(args, "-qmp", "unix:"+monitor)...)
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("QEMU says: %s", errs.String())
		}
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	vm, err := qmp.New(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	defer vm.Close()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		var buses []pciBus
		if err := vm.Execute(ctx, "query-pci", nil, &buses); err != nil {
			t.Fatal(err)
		}
		if hasGPU(buses) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the firmware has found no GPU: %+v", buses)
		case <-tick.C:
		}
	}
}

type pciBus struct{ Devices []pciDevice }

type pciDevice struct {
	Name string `json:"qdev_id"`
	ID   struct{ Vendor, Device int }
	// Regions are the BARs, -1 without an address.
	Regions []struct {
		Type    string
		Address int64
		Size    int64
	}
	Bridge *struct {
		Devices []pciDevice
	} `json:"pci_bridge"`
}

func hasGPU(buses []pciBus) bool {
	for _, b := range buses {
		for _, port := range b.Devices {
			if port.Name != "dxpu-rp0" || port.Bridge == nil {
				continue
			}
			for _, d := range port.Bridge.Devices {
				if d.Name == "dxpu0" && d.ID.Vendor == 0x1234 && d.ID.Device == 0xd9b0 && len(d.Regions) > 0 && d.Regions[0].Address > 0 {
					return true
				}
			}
		}
	}
	return false
}
