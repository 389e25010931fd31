package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/dxpu-project/dxpu/pcie"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/cdi"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/devicedata"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// claim returns a claim with two devices, in slots 0 and 1, with some conditions.
func claim(conditions ...metav1.Condition) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{}
	c.UID, c.Namespace, c.Name = "u1", "lab", "c"
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for i, name := range []string{"b1-0", "b1-1"} {
		data, _ := json.Marshal(devicedata.Data{Lease: "l-1", GPU: "b1/" + name[3:], Host: "h1", Slot: uint32(i)})
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "gpu", Driver: inventory.Driver, Pool: "dxpu/b1", Device: name,
		})
		c.Status.Devices = append(c.Status.Devices, resourceapi.AllocatedDeviceStatus{
			Driver: inventory.Driver, Pool: "dxpu/b1", Device: name, Conditions: conditions, Data: &runtime.RawExtension{Raw: data},
		})
	}
	return c
}

func condition(name string, is metav1.ConditionStatus) metav1.Condition {
	return metav1.Condition{Type: name, Status: is, Reason: "R", Message: "because"}
}

func onHost(id string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return id, nil }
}

// free says that no other claim has a path.
func free(string) error { return nil }

// socketPlugin returns a plugin for a directory with the sockets of two slots.
func socketPlugin(t *testing.T) (*Plugin, string) {
	dir, err := os.MkdirTemp("", "s") // a short path, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, s := range []string{"slot0.sock", "slot1.sock"} {
		l, err := net.Listen("unix", filepath.Join(dir, s))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	return &Plugin{Access: &Sockets{Dir: dir}, CDI: cdi.Dir(filepath.Join(dir, "cdi")), Host: onHost("h1")}, dir
}

func prepare(t *testing.T, p *Plugin, c *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	t.Helper()
	out, err := p.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{c})
	if err != nil {
		t.Fatal(err)
	}
	return out[c.UID]
}

func TestPrepare(t *testing.T) {
	p, dir := socketPlugin(t)
	for range 2 { // the kubelet may repeat it
		r := prepare(t, p, claim(condition(inventory.Attached, "True")))
		if r.Err != nil || len(r.Devices) != 2 || len(r.Devices[0].CDIDeviceIDs) != 1 || r.Devices[0].CDIDeviceIDs[0] != "dxpu.dev/gpu=u1-b1-0" {
			t.Fatalf("prepared %+v", r)
		}
	}
	raw, err := os.ReadFile(filepath.Join(dir, "cdi", "gpu.dxpu.dev-u1.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"DXPU_SOCKETS=/run/dxpu"`, `"hostPath": "` + dir + `/slot1.sock"`, `"kind": "dxpu.dev/gpu"`, `"containerPath": "/run/dxpu/devices/1.sock"`} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("the CDI specification lacks %s:\n%s", want, raw)
		}
	}
	if found, err := p.CDI.Claims(); err != nil || len(found) != 1 || found[0] != "u1" {
		t.Errorf("claims %v, %v", found, err)
	}
	for range 2 {
		out, err := p.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "u1"}})
		if err != nil || out["u1"] != nil {
			t.Fatalf("unprepare: %v, %v", out, err)
		}
	}
	if files, _ := os.ReadDir(filepath.Join(dir, "cdi")); len(files) != 0 {
		t.Errorf("files are left: %v", files)
	}
}

// TestPrepareKilled: a plugin that is killed while it writes the specification of a claim leaves a file,
// which goes with the claim, also if the claim is not prepared again.
func TestPrepareKilled(t *testing.T) {
	for _, again := range []bool{true, false} {
		p, dir := socketPlugin(t)
		if err := os.Mkdir(filepath.Join(dir, "cdi"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cdi", ".gpu.dxpu.dev-u1.tmp"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if again {
			if r := prepare(t, p, claim(condition(inventory.Attached, "True"))); r.Err != nil {
				t.Fatal(r.Err)
			}
			if info, err := os.Stat(filepath.Join(dir, "cdi", "gpu.dxpu.dev-u1.json")); err != nil || info.Mode().Perm() != 0o644 {
				t.Errorf("the specification is %v, %v; want a file that each runtime may read", info, err)
			}
		}
		if out, err := p.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "u1"}}); err != nil || out["u1"] != nil {
			t.Fatalf("unprepare: %v, %v", out, err)
		}
		if files, _ := os.ReadDir(filepath.Join(dir, "cdi")); len(files) != 0 {
			t.Errorf("prepared again: %v; files are left: %v", again, files)
		}
	}
}

// TestPrepareAdmin: access for monitoring is prepared without a device, whose slot another pod
// has.
func TestPrepareAdmin(t *testing.T) {
	p, _ := socketPlugin(t)
	c, yes := claim(condition(inventory.Attached, "True")), true
	for i := range c.Status.Allocation.Devices.Results {
		c.Status.Allocation.Devices.Results[i].AdminAccess = &yes
	}
	if r := prepare(t, p, c); r.Err != nil || len(r.Devices) > 0 {
		t.Errorf("prepared %+v", r)
	}
	if found, err := p.CDI.Claims(); err != nil || len(found) > 0 {
		t.Errorf("the runtime has specifications of %v, %v", found, err)
	}
}

func TestPrepareRefuses(t *testing.T) {
	p, dir := socketPlugin(t)
	noStatus := claim()
	noStatus.Status.Devices = nil
	gone := claim(condition(inventory.Attached, "True"))
	gone.Status.Devices[1].Data.Raw = []byte(`{"gpu":"b1/1","host":"h1","slot":7}`)
	elsewhere := claim(condition(inventory.Attached, "True"))
	elsewhere.Status.Devices[1].Data.Raw = []byte(`{"gpu":"b1/1","host":"h2","slot":1}`)
	broken := claim(condition(inventory.Attached, "True"))
	broken.Status.Devices[0].Data.Raw = []byte(`{"slot":-1}`)
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		want  string
	}{
		"no status":       {noStatus, "device b1-0 is not attached yet"},
		"attaching":       {claim(condition(inventory.Attached, "False")), "not attached yet: because"},
		"lost":            {claim(condition(inventory.Attached, "True"), condition(inventory.Failed, "True")), "b1-0 is lost: because"},
		"no socket":       {gone, "does dxpu host run on this node with --socket-dir " + dir},
		"another node":    {elsewhere, `GPU b1/1 is attached to host "h2", and the host of this node is "h1"`},
		"not of this use": {broken, "the data in the claim's status"},
	} {
		t.Run(name, func(t *testing.T) {
			if r := prepare(t, p, tc.claim); r.Err == nil || !strings.Contains(r.Err.Error(), tc.want) {
				t.Errorf("error %v, want %q", r.Err, tc.want)
			}
		})
	}
	if found, _ := p.CDI.Claims(); len(found) > 0 {
		t.Errorf("a refused claim has devices: %v", found)
	}
}

// TestSlotOfAnotherClaim: the pod of a claim that has lost its GPU may still run when its slot
// has the GPU of another claim, whose pod starts when the first one has ended.
func TestSlotOfAnotherClaim(t *testing.T) {
	p, _ := socketPlugin(t)
	if r := prepare(t, p, claim(condition(inventory.Attached, "True"))); r.Err != nil {
		t.Fatal(r.Err)
	}
	next := claim(condition(inventory.Attached, "True"))
	next.UID = "u2"
	if r := prepare(t, p, next); r.Err == nil || !strings.Contains(r.Err.Error(), "slot0.sock is still that of claim lab/c (u1)") {
		t.Errorf("beside the pod that had the slot: %v", r.Err)
	}
	if out, err := p.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "u1"}}); err != nil || out["u1"] != nil {
		t.Fatalf("unprepare: %v, %v", out, err)
	}
	if r := prepare(t, p, next); r.Err != nil {
		t.Errorf("after it: %v", r.Err)
	}
}

// TestDriver: a container gets the driver whichever way its devices come, and the file of the
// ICD loader is not written again: containers have it mounted.
func TestDriver(t *testing.T) {
	p, dir := socketPlugin(t)
	driver := Driver{Library: "/opt/d/libdxpu-opencl.so", Dir: dir}
	p.Access.(*Sockets).Driver = driver
	if r := prepare(t, p, claim(condition(inventory.Attached, "True"))); r.Err != nil {
		t.Fatal(r.Err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "cdi", "gpu.dxpu.dev-u1.json"))
	if err != nil || !strings.Contains(string(raw), `"hostPath": "/opt/d/libdxpu-opencl.so"`) || !strings.Contains(string(raw), `"containerPath": "/etc/OpenCL/vendors/dxpu.icd"`) {
		t.Errorf("%v: the CDI specification lacks the driver:\n%s", err, raw)
	}
	icd := filepath.Join(dir, "dxpu.icd")
	before, err := os.Stat(icd)
	if err != nil {
		t.Fatal(err)
	}
	e, _, err := (&VFIO{Driver: driver}).Open(t.Context(), 0, nil, free)
	if err != nil || len(e.Mounts) != 2 {
		t.Errorf("mounts %+v, %v", e.Mounts, err)
	}
	after, err := os.Stat(icd)
	if err != nil || !os.SameFile(before, after) || before.ModTime() != after.ModTime() {
		t.Errorf("the file was written again: %v", err)
	}
	if text, err := os.ReadFile(icd); err != nil || string(text) != containerDriver+"\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// portConfig returns the configuration space of a root port with a physical slot number, as QEMU's
// is: the capability of PCI Express is the second one.
func portConfig(slot byte) string {
	c := make([]byte, pcie.ConfigSizePCI)
	c[0x06], c[0x0e], c[0x34] = 0x10, 0x81, 0x40
	c[0x40], c[0x41] = 0x0d, 0x54
	c[0x54], c[0x56], c[0x57] = 0x10, 0x42, 0x01
	c[0x54+0x16] = slot << 3
	return string(c)
}

// TestPhysicalSlot: functions that are no ports with a slot, and broken lists of capabilities.
func TestPhysicalSlot(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(c []byte)
		want   uint32
		is     bool
	}{
		"a port":              {func([]byte) {}, 5, true},
		"a large number":      {func(c []byte) { c[0x54+0x16], c[0x54+0x17] = 0xf8, 0xff }, 8191, true},
		"no bridge":           {func(c []byte) { c[0x0e] = 0 }, 0, false},
		"no slot":             {func(c []byte) { c[0x57] = 0 }, 0, false},
		"no capabilities":     {func(c []byte) { c[0x06] = 0 }, 0, false},
		"no PCI Express":      {func(c []byte) { c[0x54] = 5 }, 0, false},
		"a list without end":  {func(c []byte) { c[0x41] = 0x40 }, 0, false},
		"into the header":     {func(c []byte) { c[0x34] = 0x10 }, 0, false},
		"beyond the end":      {func(c []byte) { c[0x41] = 0xfc }, 0, false},
		"the end of the list": {func(c []byte) { c[0x41] = 0 }, 0, false},
	} {
		c := []byte(portConfig(5))
		tc.change(c)
		if n, is := physicalSlot(c); n != tc.want || is != tc.is {
			t.Errorf("%s: %d, %v; want %d, %v", name, n, is, tc.want, tc.is)
		}
	}
	if _, is := physicalSlot([]byte(portConfig(5))[:64]); is {
		t.Error("64 bytes have a slot")
	}
}

// TestVFIO: a function below the port of slot 1, with another driver.
func TestVFIO(t *testing.T) {
	root := t.TempDir()
	v := &VFIO{Sysfs: root, Dev: "/dev"}
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	taken := "" // by another claim
	device := func() (string, error) {
		e, attributes, err := v.Open(t.Context(), 0, []devicedata.Data{{GPU: "b1/1", Slot: 1}}, func(path string) error {
			if path == taken {
				return errors.New("taken")
			}
			return nil
		})
		if err != nil {
			return "", err
		}
		return e.DeviceNodes[1].Path + " " + *attributes[0][pciBusID].StringValue + " " + e.Env[0], nil
	}
	if _, err := device(); err == nil || !strings.Contains(err.Error(), "no root port with physical slot number 2") {
		t.Errorf("without a port: %v", err)
	}
	write("bus/pci/devices/0000:00:01.0/config", portConfig(1))
	write("bus/pci/devices/0000:00:1f.0/config", "\x86\x80")
	port := "bus/pci/devices/0000:00:02.0/"
	write(port+"config", portConfig(2))
	write(port+"0000:02:00.1/config", "")
	if _, err := device(); err == nil || !strings.Contains(err.Error(), "slot 1 is empty") {
		t.Errorf("without a function: %v", err)
	}
	at := "bus/pci/devices/0000:02:00.0/"
	write(port+"0000:02:00.0/config", "")
	write("bus/pci/devices/0000:00:03.0/config", portConfig(2))
	if _, err := device(); err == nil || !strings.Contains(err.Error(), "several ports with physical slot number 2") {
		t.Errorf("with two ports of one number: %v", err)
	}
	write("bus/pci/devices/0000:00:03.0/config", portConfig(3))
	write(at+"driver_override", "")
	if _, err := device(); err == nil || !strings.Contains(err.Error(), "virtual IOMMU") {
		t.Errorf("without an IOMMU: %v", err)
	}
	write("bus/pci/drivers/other/unbind", "")
	for name, to := range map[string]string{"iommu_group": "../../../kernel/iommu_groups/17", "driver": "../../drivers/other"} {
		if err := os.Symlink(to, filepath.Join(root, at, name)); err != nil {
			t.Fatal(err)
		}
	}
	write("bus/pci/drivers_probe", "")
	taken = "/dev/vfio/17"
	if _, err := device(); err == nil || !strings.Contains(err.Error(), "taken") {
		t.Errorf("with another claim that has the group: %v", err)
	}
	taken = ""
	var said []string
	loaded := false // the module vfio-pci
	v.write = func(path, text string) error {
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		said = append(said, text+" > "+rel)
		driver := filepath.Join(root, at, "driver")
		switch filepath.Base(path) {
		case "unbind":
			return os.Remove(driver)
		case "drivers_probe":
			if loaded {
				return os.Symlink("../../drivers/vfio-pci", driver)
			}
		}
		return nil
	}
	if _, err := device(); err == nil || !strings.Contains(err.Error(), "load the module vfio-pci") {
		t.Errorf("without the module: %v", err)
	}
	loaded = true
	for range 2 { // the second time it is bound
		got, err := device()
		if want := "/dev/vfio/17 0000:02:00.0 DXPU_PCI_ADDRESS_1=0000:02:00.0"; err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	want := []string{
		"vfio-pci > " + at + "driver_override", "0000:02:00.0 > " + at + "driver/unbind", "0000:02:00.0 > bus/pci/drivers_probe",
		"vfio-pci > " + at + "driver_override", "0000:02:00.0 > bus/pci/drivers_probe",
	}
	if !slices.Equal(said, want) {
		t.Errorf("told the kernel %q, want %q", said, want)
	}
}
