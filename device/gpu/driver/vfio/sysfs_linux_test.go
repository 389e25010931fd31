package vfio

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Behind an IOMMU that translates, DMA to physical addresses never arrives: the driver waited
// for it until the device was gone.
func TestSysfsBehindIOMMU(t *testing.T) {
	for _, c := range []struct {
		domain  string // type of the IOMMU group, "" for no group
		refused bool
	}{
		{"", false},
		{"identity\n", false},
		{"unknown\n", false}, // the group of a device without an IOMMU
		{"DMA\n", true},
		{"DMA-FQ\n", true},
		{"blocked\n", true},
	} {
		dir := t.TempDir()
		for _, name := range []string{"config", "enable"} {
			if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 4096), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if c.domain != "" {
			if err := os.Mkdir(filepath.Join(dir, "iommu_group"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "iommu_group", "type"), []byte(c.domain), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a, err := openSysfs(dir)
		if refused := err != nil && strings.Contains(err.Error(), "behind an IOMMU"); refused != c.refused || err != nil && !refused {
			t.Errorf("domain %q: %v, want refused: %v", c.domain, err, c.refused)
		}
		if err == nil {
			_ = a.close()
		}
	}
}
