package vfiouser

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/leaktest"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// monitor is a QMP connection to a QEMU that runs no guest: qtest is its CPU.
type monitor struct {
	*qtest
	tb     testing.TB
	conn   net.Conn
	dec    *json.Decoder
	events []string
	ended  chan error
}

type qmpMessage struct {
	Return json.RawMessage `json:"return"`
	Event  string          `json:"event"`
	Error  *struct{ Desc string }
}

func startQEMU(t *testing.T, args ...string) *monitor {
	t.Helper()
	installed, err := qemu.Locate()
	if errors.Is(err, qemu.ErrNotInstalled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := tempDir(t)
	sock, test := filepath.Join(dir, "qmp"), filepath.Join(dir, "qtest")
	cmd := exec.Command(installed.QEMU, append([]string{
		"-M", "q35,accel=qtest", "-qtest", "unix:" + test + ",server=on,wait=off", "-qtest-log", "none", "-m", "256M", "-nodefaults", "-display", "none", "-qmp", "unix:" + sock + ",server=on,wait=off",
		"-device", "pcie-root-port,id=rp0,chassis=1,slot=1,bus=pcie.0,addr=0x3",
	}, args...)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	must(t, cmd.Start())
	m := &monitor{tb: t, ended: make(chan error, 1)}
	go func() { m.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-m.ended
		if log.Len() > 0 {
			t.Logf("QEMU says: %s", log.Bytes())
		}
	})
	for limit := time.Now().Add(patience); ; {
		var err error
		if m.conn, err = net.Dial("unix", sock); err == nil {
			break
		}
		select {
		case err := <-m.ended:
			m.ended <- err
			t.Fatalf("QEMU has ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(limit) {
			t.Fatal("QEMU does not listen")
		}
	}
	t.Cleanup(func() { _ = m.conn.Close() })
	m.dec = json.NewDecoder(m.conn)
	m.read() // the greeting
	m.qmp("qmp_capabilities", nil)
	m.qtest = dialQtest(t, test)
	return m
}

func (m *monitor) read() qmpMessage {
	m.tb.Helper()
	_ = m.conn.SetReadDeadline(time.Now().Add(2 * patience))
	var q qmpMessage
	if err := m.dec.Decode(&q); err != nil {
		select {
		case end := <-m.ended:
			m.ended <- end
			m.tb.Fatalf("QEMU has ended: %v", end)
		default:
			m.tb.Fatalf("QMP: %v", err)
		}
	}
	return q
}

func (m *monitor) qmp(command string, args any) json.RawMessage {
	m.tb.Helper()
	result, problem := m.ask(command, args)
	if problem != "" {
		m.tb.Fatalf("%s: %s", command, problem)
	}
	return result
}

// try runs a command and returns QEMU's error, or "".
func (m *monitor) try(command string, args any) (problem string) {
	m.tb.Helper()
	_, problem = m.ask(command, args)
	return problem
}

func (m *monitor) ask(command string, args any) (result json.RawMessage, problem string) {
	m.tb.Helper()
	must(m.tb, json.NewEncoder(m.conn).Encode(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{command, args}))
	for {
		switch q := m.read(); {
		case q.Error != nil:
			return nil, q.Error.Desc
		case q.Event != "":
			m.events = append(m.events, q.Event)
		default:
			return q.Return, ""
		}
	}
}

func (m *monitor) wait(event string) {
	m.tb.Helper()
	for {
		for i, e := range m.events {
			if e == event {
				m.events = m.events[i+1:]
				return
			}
		}
		m.events = append(m.events, m.read().Event)
	}
}

// hmp is a command of the human monitor.
func (m *monitor) hmp(line string) string {
	m.tb.Helper()
	var s string
	must(m.tb, json.Unmarshal(m.qmp("human-monitor-command", map[string]string{"command-line": line}), &s))
	return s
}

// word reads 4 bytes at a guest-physical address, as a CPU would.
func (m *monitor) word(addr uint64) uint32 {
	m.tb.Helper()
	out := m.hmp(fmt.Sprintf("xp /1wx %#x", addr))
	var a uint64
	var v uint32
	if _, err := fmt.Sscanf(strings.TrimSpace(out), "%x: 0x%x", &a, &v); err != nil {
		m.tb.Fatalf("xp: %q: %v", out, err)
	}
	return v
}

// qemuConfigSpace is a PCI Express endpoint with MSI-X.
func qemuConfigSpace() []byte {
	b := testConfigSpace()
	binary.LittleEndian.PutUint32(b, 0x56781234)
	copy(b[8:], []byte{1, 0, 0x80, 0x08}) // class: a system peripheral
	b[0x42] = 3                           // power management version
	b[0x62] = 2                           // PCI Express capability version, endpoint
	binary.LittleEndian.PutUint16(b[0x52:], 63)
	binary.LittleEndian.PutUint32(b[0x54:], 0x8000) // table and pending bits in BAR 0
	binary.LittleEndian.PutUint32(b[0x58:], 0x9000)
	return b
}

// TestQEMU plugs a device with MSI-X into a real QEMU, uses it, lets it fall
// silent, and unplugs it, several times with the same QEMU.
func TestQEMU(t *testing.T) {
	const rounds = 5
	m := startQEMU(t, "-object", "memory-backend-memfd,id=mem,size=256M,share=on", "-machine", "memory-backend=mem")
	f := serve(t, func(c *Config) {
		c.HideMSIXAtRealize = true
		c.Deadline = 300 * time.Millisecond
	})
	before := leaktest.Descriptors(t)
	for round := range rounds {
		f.dev.set(func(d *testDevice) {
			copy(d.mem[7], qemuConfigSpace())
			clear(d.mem[7][4:6])
			binary.LittleEndian.PutUint32(d.mem[0][0x100:], 0xcafe0000+uint32(round))
		})
		m.qmp("device_add", map[string]any{
			"driver": "vfio-user-pci", "id": "v0", "bus": "rp0",
			"socket": map[string]string{"type": "unix", "path": f.path},
		})
		c := <-f.dev.connected
		m.qmp("system_reset", nil)
		bar := m.enable()
		if v := m.word(bar + 0x100); v != 0xcafe0000+uint32(round) {
			t.Errorf("register %#x", v)
		}
		useMemory(t, m, c, round)
		useSilence(t, m, f, bar+0x100)

		m.qmp("device_del", map[string]string{"id": "v0"})
		m.eject()
		m.wait("DEVICE_DELETED")
		if err := <-f.dev.disconnected; err != nil {
			t.Errorf("disconnected: %v", err)
		}
		<-c.Done()
	}
	m.qmp("query-status", nil) // alive
	if n := leaktest.Descriptors(t); n > before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
	st := f.Stats()
	t.Logf("%+v", st)
	if st.Expired != rounds || st.Late != rounds || st.Unsolicited != 0 || st.Connections != rounds {
		t.Errorf("%+v", st)
	}
}

// useMemory writes guest RAM in place and sends an interrupt message.
func useMemory(t *testing.T, m *monitor, c *Conn, round int) {
	t.Helper()
	w := binary.LittleEndian.AppendUint32(nil, 0xd0d00000+uint32(round))
	must(t, c.DMAWrite(64<<20, w, nil))
	if v := m.word(64 << 20); v != 0xd0d00000+uint32(round) {
		t.Errorf("guest memory %#x", v)
	}
	if err := c.DMAWrite(1<<40, w, nil); !errors.Is(err, ErrUnmapped) {
		t.Errorf("outside of memory: %v", err)
	}
	done := make(chan error, 1)
	must(t, c.SignalMSI(0xfee00000, 0x40, into(done)))
	if err := waitErr(t, done); !errors.Is(err, unix.ENODEV) {
		t.Errorf("interrupt message with Bus Master Enable clear: %v", err)
	}
}

// useSilence lets one read run into the deadline and answers it afterwards.
func useSilence(t *testing.T, m *monitor, f *fixture, addr uint64) {
	t.Helper()
	hold := f.dev.holding(0)
	if v := m.word(addr); v != 0xffffffff {
		t.Errorf("a silent device reads %#x", v)
	}
	f.dev.set(func(d *testDevice) { delete(d.hold, 0) })
	(<-hold).Reply()
	if v := m.word(addr); v == 0xffffffff {
		t.Error("the device has not come back")
	}
}

// TestQEMURefused plugs a device in whose server has another VMM. QEMU says why
// not, and lives: it aborts when the server closes the socket without an answer.
func TestQEMURefused(t *testing.T) {
	m := startQEMU(t)
	f := serve(t)
	p, _ := f.connect()
	for range 20 {
		err := m.try("device_add", map[string]any{
			"driver": "vfio-user-pci", "id": "v0", "bus": "rp0",
			"socket": map[string]string{"type": "unix", "path": f.path},
		})
		if !strings.Contains(err, "Device or resource busy") {
			t.Fatalf("QEMU says %q", err)
		}
	}
	p.ok(4, le(16, 0, 0, 0)) // the first one is served as before
}

// TestQEMUPrivateMemory plugs a device into a QEMU whose memory has a descriptor and is
// private: the server does not map it.
func TestQEMUPrivateMemory(t *testing.T) {
	for share, want := range map[string]bool{"on": true, "off": false} {
		t.Run("share="+share, func(t *testing.T) {
			m := startQEMU(t, "-object", "memory-backend-memfd,id=mem,size=256M,share="+share, "-machine", "memory-backend=mem")
			f := serve(t, func(c *Config) { c.HideMSIXAtRealize = true })
			f.dev.set(func(d *testDevice) { copy(d.mem[7], qemuConfigSpace()) })
			m.qmp("device_add", map[string]any{
				"driver": "vfio-user-pci", "id": "v0", "bus": "rp0",
				"socket": map[string]string{"type": "unix", "path": f.path},
			})
			c := <-f.dev.connected
			m.qmp("query-status", nil) // the maps have been answered
			if inPlace, err := c.Memory().Check(64<<20, 4096, true); inPlace != want || (err == nil) != want {
				t.Errorf("memory in place: %v, %v", inPlace, err)
			}
		})
	}
}

// TestQEMUMessages uses guest memory that comes without descriptors.
func TestQEMUMessages(t *testing.T) {
	m := startQEMU(t)
	f := serve(t, func(c *Config) { c.HideMSIXAtRealize = true })
	f.dev.set(func(d *testDevice) { copy(d.mem[7], qemuConfigSpace()) })
	m.qmp("device_add", map[string]any{
		"driver": "vfio-user-pci", "id": "v0", "bus": "rp0",
		"socket": map[string]string{"type": "unix", "path": f.path},
	})
	c := <-f.dev.connected
	m.qmp("system_reset", nil)
	bar := m.enable()
	const addr, size = 64 << 20, 1<<20 + 12345
	data, got := make([]byte, size), make([]byte, size)
	for i := range data {
		data[i] = byte(i*i>>7 + i)
	}
	done := make(chan error, 1)
	if inPlace, err := c.Memory().Check(addr, size, true); inPlace || err != nil {
		t.Fatalf("in place %v, %v", inPlace, err)
	}
	must(t, c.DMAWrite(addr, data, into(done)))
	if err := waitErr(t, done); !errors.Is(err, unix.ENODEV) {
		t.Errorf("with Bus Master Enable clear: %v", err)
	}
	m.master()
	for range 10 {
		clear(got)
		must(t, c.DMAWrite(addr+3, data, into(done)))
		must(t, waitErr(t, done))
		must(t, c.DMARead(addr+3, got, into(done)))
		must(t, waitErr(t, done))
		if !bytes.Equal(got, data) {
			t.Fatal("wrong data")
		}
	}
	if v := m.word(addr + 4); v != binary.LittleEndian.Uint32(data[1:]) {
		t.Errorf("the CPU sees %#x", v)
	}
	must(t, c.SignalMSI(0xfee00000, 0x40, into(done)))
	must(t, waitErr(t, done))

	// A read during which the device asks for memory: answered first.
	f.dev.set(func(d *testDevice) {
		d.onAccess = func(c *Conn, a *Access) {
			go func() {
				err := c.DMARead(addr+3, got[:100_000], into(done))
				if err != nil {
					done <- err
				}
				a.Reply()
			}()
		}
	})
	m.word(bar)
	must(t, waitErr(t, done))
	f.dev.set(func(d *testDevice) { d.onAccess = nil })
	if st := f.Stats(); st.Expired != 0 || st.Unsolicited != 0 {
		t.Errorf("%+v", st)
	}
}
