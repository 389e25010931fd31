package vm_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// TestVM runs all checks that need a guest with VFIO, in one boot. The slots are
// empty before and after each check.
func TestVM(t *testing.T) {
	g := boot(t, qemu.Spec{IOMMU: true})
	bootID := g.sh(t, "cat /proc/sys/kernel/random/boot_id")
	for _, c := range []struct {
		name  string
		test  func(t *testing.T, g *guest, p *pool)
		pool  poolConfig
		alone func(t *testing.T, g *guest) // starts its own proxies: another host proxy would sweep their devices away
	}{
		{name: "lspci decodes it", test: testLspci},
		{name: "configuration space", test: testConfig},
		{name: "plug and unplug", test: testPlugUnplug},
		{name: "migration and snapshots are refused", test: testMigration},
		{name: "the guest drives it", test: testDrive},
		{name: "a user drives it", test: testUnprivileged},
		{name: "two at once", test: testTwo},
		{name: "from GPU to GPU", test: testPeer},
		{name: "function level reset", test: testFLR},
		{name: "the box dies", test: testBoxDies},
		{name: "the GPU dies", test: testGPUDies},
		{name: "the box dies while a program does not let go", test: testStuckProgram, pool: poolConfig{unplugTimeout: time.Second}},
		{name: "a program holds on", test: testHeld, pool: poolConfig{unplugTimeout: patience}},
		{name: "the guest ejects", test: testEject},
		{name: "the box is silent for a moment", test: testMoment, pool: poolConfig{completionTimeout: 200 * time.Millisecond}},
		{name: "the box is silent for longer", test: testSilence},
		{name: "the host proxy starts again", alone: testRestart},
		{name: "real processes", alone: testProcesses},
		{name: "reboot with a GPU", test: testReboot}, // last: the other checks share one boot
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			if c.alone != nil {
				c.alone(t, g)
			} else {
				c.test(t, g, newPool(t, g, c.pool))
			}
			t.Logf("%v", time.Since(began).Round(time.Millisecond))
			g.healthy(t)
			if c.name != "reboot with a GPU" && g.sh(t, "cat /proc/sys/kernel/random/boot_id") != bootID {
				t.Error("the guest was rebooted")
			}
		})
		if t.Failed() {
			g.tell(t)
			t.FailNow() // the slots may not be empty
		}
	}
}

// tell logs what the guest's kernel, QEMU and the proxies of this process said last.
func (g *guest) tell(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if out, _, err := g.Run(ctx, "dmesg"); err == nil {
		t.Logf("messages of the guest's kernel:\n%s", tail(out, 30))
	}
	for _, name := range []string{g.Log(), filepath.Join(g.dir, "proxies.log")} {
		if text, err := os.ReadFile(name); err == nil {
			t.Logf("%s ends with:\n%s", filepath.Base(name), tail(string(text), 30))
		}
	}
}

// tail returns the last lines of a text.
func tail(text string, lines int) string {
	all := strings.Split(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func testLspci(t *testing.T, g *guest, p *pool) {
	p.attach(t, 0, 0)
	defer p.detach(t, 0)
	out := g.sh(t, "lspci -vvv -s %s", g.plugged(t, 0))
	for _, bad := range []string{"!!!", "<chain", "Unknown", "denied", "<unassigned>", "[virtual]", "ignored", "(rev ff)"} {
		if strings.Contains(out, bad) {
			t.Errorf("lspci prints %q", bad)
		}
	}
	for _, want := range []string{
		`Region 0: Memory at [0-9a-f]+ \(32-bit, non-prefetchable\) .*\[size=64K\]`,
		`Region 2: Memory at [0-9a-f]{9,} \(64-bit, prefetchable\) .*\[size=64M\]`,
		`Region 4: Memory at [0-9a-f]+ \(32-bit, non-prefetchable\) .*\[size=16K\]`,
		`MSI-X: Enable- Count=16 Masked-`,
		`Express \(v2\) Endpoint`,
		`FLReset\+`,
		`Advanced Error Reporting`,
		`Device Serial Number 00-00-00-00-00-00-00-01`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("lspci does not print %s", want)
		}
	}
	if t.Failed() {
		t.Log("\n" + out)
	}
}

func testPlugUnplug(t *testing.T, g *guest, p *pool) {
	cycle := func() {
		p.attach(t, 0, 0)
		address := g.plugged(t, 0)
		p.detach(t, 0)
		g.unplugged(t, address)
	}
	cycle() // allocates everything that is allocated once
	n := 10
	if thorough() {
		n = 100
	}
	ours, theirs, goroutines := resourcesOf(t, "self"), resourcesOf(t, g.PID()), runtime.NumGoroutine()
	began := time.Now()
	for range n {
		cycle()
	}
	took := time.Since(began)
	t.Logf("%d times in %v, %v each", n, took.Round(time.Millisecond), (took / time.Duration(n)).Round(time.Millisecond))
	noGoroutines(t, goroutines)
	if now := resourcesOf(t, "self"); now.exceeds(ours) {
		t.Errorf("the host proxy has %+v, before %+v", now, ours)
	}
	if now := resourcesOf(t, g.PID()); now.exceeds(theirs) {
		t.Errorf("QEMU has %+v, before %+v", now, theirs)
	}
}

// testMigration tries to migrate the VM with a GPU, and to save it: QEMU would lose the
// GPU's state without a word.
func testMigration(t *testing.T, g *guest, p *pool) {
	p.attach(t, 0, 0)
	g.plugged(t, 0)
	err := g.QMP().Execute(t.Context(), "migrate", map[string]string{"uri": "exec:cat >/dev/null"}, nil)
	if err == nil || !strings.Contains(err.Error(), "'gpu-in-slot-0' does not support live migration") {
		t.Errorf("QEMU says %v", err)
	}
	var said string // of the human monitor, which has no other way to say no
	if err := g.QMP().Execute(t.Context(), "human-monitor-command", map[string]string{"command-line": "savevm x"}, &said); err != nil || said == "" {
		t.Errorf("a snapshot is taken: %q, %v", said, err)
	}
	t.Log(strings.TrimSpace(said))
	p.detach(t, 0)
	var state struct {
		Reasons []string `json:"blocked-reasons"`
	}
	if err := g.QMP().Execute(t.Context(), "query-migrate", nil, &state); err != nil || len(state.Reasons) > 0 {
		t.Errorf("without a GPU migration is blocked: %q, %v", state.Reasons, err)
	}
}

func testDrive(t *testing.T, g *guest, p *pool) {
	p.attach(t, 0, 0)
	defer p.detach(t, 0)
	options := "--quick --rounds 2000"
	if thorough() {
		options = ""
	}
	address := g.plugged(t, 0)
	const payload = 7 << 5 // Max_Payload_Size
	control, err := strconv.ParseUint(g.sh(t, "setpci -s %s CAP_EXP+8.w", address), 16, 16)
	if err != nil || control&payload != 0 {
		t.Errorf("Device Control is %#x: the guest's Max_Payload_Size should be 128, that of QEMU's root port (%v)", control, err)
	}
	out := g.sh(t, program+" gpu test --bind --pci %s %s", address, options)
	t.Log("\n" + out)
	if n := strings.Count(out, " 4096 in a TLP"); n != 2 {
		t.Errorf("%d of 2 measurements of copies used packets of 4096 bytes", n)
	}
	if strings.Contains(out, "FAIL") || !strings.Contains(out, " 0 stale of 2000") || !strings.Contains(out, " checks passed ") {
		t.Error("not all checks passed")
	}
}

const unprivileged = "nobody" // prose:ok: the user of that name

// A user with the group's device file needs no other right.
func testUnprivileged(t *testing.T, g *guest, p *pool) {
	p.attach(t, 0, 0)
	defer p.detach(t, 0)
	address := g.plugged(t, 0)
	g.sh(t, `echo vfio-pci >/sys/bus/pci/devices/%[1]s/driver_override && echo %[1]s >/sys/bus/pci/drivers_probe
		chown %[2]s /dev/vfio/$(basename $(readlink /sys/bus/pci/devices/%[1]s/iommu_group))`, address, unprivileged)
	t.Log(g.sh(t, `su -s /bin/sh %s -c "id -u; ulimit -l; %s use %s"`, unprivileged, helper, address))
	if !thorough() {
		return
	}
	// The whole test pins more than the 8 MiB that a process may lock by default.
	out := g.sh(t, `ulimit -l 65536; su -s /bin/sh %s -c "%s gpu test --quick --pci %s"`, unprivileged, program, address)
	t.Log(tail(out, 1))
}

// testTwo drives two GPUs at the same time.
func testTwo(t *testing.T, g *guest, p *pool) {
	for slot := range 2 {
		p.attach(t, slot, slot)
		defer p.detach(t, slot)
	}
	command := helper + " use %[1]s %[1]s %[1]s %[1]s %[1]s"
	if thorough() {
		command = program + " gpu test --quick --bind --pci %[1]s"
	}
	var jobs []*job
	for slot := range 2 {
		jobs = append(jobs, g.start(t, command, g.plugged(t, slot)))
	}
	for _, j := range jobs {
		if exit := j.wait(t); exit != 0 {
			t.Errorf("%s: status %d\n%s", j.command, exit, j.out.String())
		}
		t.Log(tail(strings.TrimSpace(j.out.String()), 1))
	}
}

// testPeer copies from one GPU to the other.
func testPeer(t *testing.T, g *guest, p *pool) {
	for slot := range 2 {
		p.attach(t, slot, slot)
		defer p.detach(t, slot)
	}
	t.Log(g.sh(t, "%s peer %s %s", helper, g.plugged(t, 0), g.plugged(t, 1)))
}

// noGoroutines fails the test if goroutines are left.
func noGoroutines(t *testing.T, before int) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Errorf("%d goroutines, before %d", runtime.NumGoroutine(), before)
			return
		}
	}
}
