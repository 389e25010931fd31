package vfio

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeSysfs makes a tree like that of sysfs with one GPU and one other device.
func fakeSysfs(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	put := func(name, content string) {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := func(name, target string) {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []struct{ address, vendor, device, class string }{
		{"0000:00:01.0", "0x8086", "0x100e", "0x020000"},
		{"0000:01:00.0", "0x1234", "0xd9b0", "0x120000"},
	} {
		dir := "devices/pci0000:00/" + d.address
		put(dir+"/vendor", d.vendor+"\n")
		put(dir+"/device", d.device+"\n")
		put(dir+"/class", d.class+"\n")
		put(dir+"/driver_override", "")
		if err := os.MkdirAll(filepath.Join(root, devicesDir), 0o755); err != nil {
			t.Fatal(err)
		}
		link(devicesDir+"/"+d.address, "../../../"+dir)
	}
	put("bus/pci/drivers/vfio-pci/unbind", "")
	put("bus/pci/drivers/other/unbind", "")
	put("bus/pci/drivers_probe", "")
	put("kernel/iommu_groups/7/name", "")
	link("devices/pci0000:00/0000:01:00.0/driver", "../../../bus/pci/drivers/other")
	link("devices/pci0000:00/0000:01:00.0/iommu_group", "../../../kernel/iommu_groups/7")
	return root
}

func TestFind(t *testing.T) {
	sysfs := os.DirFS(fakeSysfs(t))
	got, err := Find(sysfs, 0x1234, 0xd9b0)
	if err != nil {
		t.Fatal(err)
	}
	want := []Function{{Address: "0000:01:00.0", Vendor: 0x1234, Device: 0xd9b0, Class: 0x120000, Driver: "other", IOMMUGroup: "7"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err := Find(os.DirFS(t.TempDir()), 1, 1); err != nil || got != nil {
		t.Errorf("without a PCI bus: %v, %v", got, err)
	}
}

func TestLookup(t *testing.T) {
	sysfs := os.DirFS(fakeSysfs(t))
	for _, c := range []struct {
		address string
		ok      bool
	}{
		{"0000:01:00.0", true},
		{"01:00.0", true},
		{"02:00.0", false},
		{"../../..", false},
		{"", false},
		{"0000:01:00.0/driver", false},
	} {
		if _, err := Lookup(sysfs, c.address); (err == nil) != c.ok {
			t.Errorf("%q: %v", c.address, err)
		}
	}
}

// A file system does not bind, but it records the writes.
func TestBindWrites(t *testing.T) {
	root := fakeSysfs(t)
	if err := Bind(root, "0000:01:00.0", Driver); err == nil {
		t.Error("the driver is still another one: no error")
	}
	for file, want := range map[string]string{
		devicesDir + "/0000:01:00.0/driver_override": Driver,
		"bus/pci/drivers/other/unbind":               "0000:01:00.0",
		"bus/pci/drivers_probe":                      "0000:01:00.0",
	} {
		got, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
	if err := Bind(root, "0000:01:00.0", "other"); err != nil {
		t.Errorf("bound already: %v", err)
	}
	if err := Bind(root, "0000:09:00.0", Driver); err == nil {
		t.Error("a function that is not there was bound")
	}
}
