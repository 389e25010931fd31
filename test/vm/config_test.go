package vm_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// testConfig reads and writes configuration space through sysfs, as drivers do: in
// each width, writable and read-only registers.
func testConfig(t *testing.T, g *guest, p *pool) {
	p.attach(t, 0, 0)
	defer p.detach(t, 0)
	address := g.plugged(t, 0)
	var script strings.Builder
	var want []string
	for _, c := range []struct {
		name, access, want string // of setpci: REGISTER.WIDTH or, to write, with =VALUE
	}{
		{"identity, 4 bytes", "00.l", "d9b01234"},
		{"identity, 2 bytes", "02.w", "d9b0"},
		{"identity, each byte", "00.b", "34"},
		{"", "01.b", "12"},
		{"", "02.b", "b0"},
		{"", "03.b", "d9"},
		{"identity is read-only", "00.l=ffffffff", ""},
		{"", "00.l", "d9b01234"},
		{"", "00.w=0", ""},
		{"", "00.b=0", ""},
		{"", "00.l", "d9b01234"},
		{"class is read-only", "08.l=0", ""},
		{"", "08.l", "12000001"},
		{"BAR 0 is 64 KiB", "10.l=ffffffff", ""},
		{"", "10.l", "ffff0000"},
		{"BAR 2 is 64 MiB, 64-bit, prefetchable", "18.l=ffffffff", ""},
		{"", "1c.l=ffffffff", ""},
		{"", "18.l", "fc00000c"},
		{"", "1c.l", "ffffffff"},
		{"a BAR takes 64-bit addresses", "18.l=04000000", ""},
		{"", "1c.l=00000123", ""},
		{"", "18.l", "0400000c"},
		{"", "1c.l", "00000123"},
		{"BAR 4 is 16 KiB", "20.l=ffffffff", ""},
		{"", "20.l", "ffffc000"},
		{"there is no BAR 5", "24.l=ffffffff", ""},
		{"", "24.l", "00000000"},
		{"interrupt line, 1 byte", "3c.b=5a", ""},
		{"", "3c.b", "5a"},
		{"AER mask, 4 bytes", "108.l=00100000", ""},
		{"", "108.l", "00100000"},
		{"AER mask, 2 bytes", "10a.w=0001", ""},
		{"", "108.l", "00010000"},
		{"AER mask, 1 byte", "10a.b=10", ""},
		{"", "108.l", "00100000"},
		{"AER mask, 1 byte beside", "108.b=10", ""},
		{"", "108.l", "00100010"},
		{"serial number, 4 bytes", "130.l", "00000001"},
		{"the last double word", "ffc.l", "00000000"},
	} {
		fmt.Fprintf(&script, "setpci -s %s %s\n", address, c.access)
		if c.want != "" {
			want = append(want, fmt.Sprintf("%s: %s is %s", c.name, c.access, c.want))
		}
	}
	saved := g.sh(t, "for r in 10 18 1c 20 108 3c; do echo $r.l=$(setpci -s %s $r.l); done", address)
	got := strings.Fields(g.sh(t, "%s", script.String()))
	if len(got) != len(want) {
		t.Fatalf("%d answers, want %d: %q", len(got), len(want), got)
	}
	for i, w := range want {
		if !strings.HasSuffix(w, " is "+got[i]) {
			t.Errorf("want %s; got %s", w, got[i])
		}
	}
	if n := g.sh(t, "cat /sys/bus/pci/devices/%s/config | wc -c", address); n != "4096" {
		t.Errorf("configuration space of %s bytes", n)
	}
	// With the saved values the device works again.
	g.sh(t, "setpci -s %s %s && %s use %[1]s", address, strings.Join(strings.Fields(saved), " "), helper)
}

// testFLR resets the function through sysfs, and moves it from driver to driver.
func testFLR(t *testing.T, g *guest, p *pool) {
	p.attach(t, 0, 0)
	defer p.detach(t, 0)
	address := g.plugged(t, 0)
	g.sh(t, "%s use %s", helper, address)
	out := g.sh(t, `cd /sys/bus/pci/devices/%[1]s && cat reset_method && for i in 1 2 3; do echo 1 >reset || exit; done
		%[2]s use %[1]s
		echo %[1]s >driver/unbind && echo 1 >reset && echo %[1]s >/sys/bus/pci/drivers_probe || exit
		%[2]s use %[1]s`, address, helper)
	t.Log(out)
	if !strings.Contains(out, "flr") || strings.Count(out, "iommu") != 2 {
		t.Errorf("reset by %s", out)
	}
}

// testReboot resets the machine while it has a GPU.
func testReboot(t *testing.T, g *guest, p *pool) {
	p.attach(t, 0, 0)
	defer p.detach(t, 0)
	g.sh(t, "%s use %s", helper, g.plugged(t, 0))
	before := g.sh(t, "cat /proc/sys/kernel/random/boot_id")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := g.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if g.sh(t, "cat /proc/sys/kernel/random/boot_id") == before {
		t.Error("the guest was not rebooted")
	}
	t.Logf("the guest was ready %v after its kernel started", g.Uptime())
	// It is there from the start, because the firmware has found it.
	t.Log(g.sh(t, "%s use %s", helper, g.plugged(t, 0)))
}
