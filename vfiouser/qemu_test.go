package vfiouser

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// monitor is a QMP connection to a QEMU that runs its firmware and no guest.
type monitor struct {
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
	path := os.Getenv("DXPU_QEMU")
	if path == "" {
		t.Skip("set DXPU_QEMU to a QEMU 10.1 or newer to test against it")
	}
	sock := filepath.Join(tempDir(t), "qmp")
	cmd := exec.Command(path, append([]string{
		"-M", "q35,accel=kvm:tcg", "-m", "256M", "-nodefaults", "-display", "none", "-qmp", "unix:" + sock + ",server=on,wait=off",
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
	m.do("qmp_capabilities", nil)
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

func (m *monitor) do(command string, args any) json.RawMessage {
	m.tb.Helper()
	must(m.tb, json.NewEncoder(m.conn).Encode(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{command, args}))
	for {
		switch q := m.read(); {
		case q.Error != nil:
			m.tb.Fatalf("%s: %s", command, q.Error.Desc)
		case q.Event != "":
			m.events = append(m.events, q.Event)
		default:
			return q.Return
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
	must(m.tb, json.Unmarshal(m.do("human-monitor-command", map[string]string{"command-line": line}), &s))
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

// bar0 waits until the firmware has programmed and enabled the device's BAR 0.
func (m *monitor) bar0(f *fixture) uint64 {
	m.tb.Helper()
	re := regexp.MustCompile(`1234:5678[\s\S]*?BAR0: 32 bit memory at (0x[0-9a-f]+)`)
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		hit := re.FindStringSubmatch(m.hmp("info pci"))
		var addr uint64
		if hit == nil || f.dev.peek(7, 4, 1)[0]&2 == 0 {
			continue
		}
		if _, err := fmt.Sscanf(hit[1], "0x%x", &addr); err == nil && addr != 0xffffffff && addr != 0 {
			return addr
		}
	}
	m.tb.Fatalf("the firmware has not enabled the device: %s", m.hmp("info pci"))
	return 0
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
	before := openFDs(t)
	for round := range rounds {
		f.dev.set(func(d *testDevice) {
			copy(d.mem[7], qemuConfigSpace())
			clear(d.mem[7][4:6])
			binary.LittleEndian.PutUint32(d.mem[0][0x100:], 0xcafe0000+uint32(round))
		})
		m.do("device_add", map[string]any{
			"driver": "vfio-user-pci", "id": "v0", "bus": "rp0",
			"socket": map[string]string{"type": "unix", "path": f.path},
		})
		c := <-f.dev.connected
		m.do("system_reset", nil)
		bar := m.bar0(f)
		if v := m.word(bar + 0x100); v != 0xcafe0000+uint32(round) {
			t.Errorf("register %#x", v)
		}
		useMemory(t, m, c, round)
		useSilence(t, m, f, bar+0x100)

		m.do("device_del", map[string]string{"id": "v0"})
		m.do("system_reset", nil)
		m.wait("DEVICE_DELETED")
		if err := <-f.dev.disconnected; err != nil {
			t.Errorf("disconnected: %v", err)
		}
		<-c.Done()
	}
	m.do("query-status", nil) // alive
	if n := openFDs(t); n != before {
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
	// The firmware leaves Bus Master Enable clear or set as it likes.
	if err := waitErr(t, done); err != nil && !errors.Is(err, unix.ENODEV) {
		t.Errorf("interrupt message: %v", err)
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

// enableBusMaster sets the command register of the device behind the root port
// as a guest's driver would, through QEMU's test protocol.
func enableBusMaster(t *testing.T, path string) {
	t.Helper()
	c, err := net.Dial("unix", path)
	must(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	r := bufio.NewReader(c)
	for _, line := range []string{"outl 0xcf8 0x80010004", "outl 0xcfc 0x6"} { // bus 1, register 4
		_, err := fmt.Fprintln(c, line)
		must(t, err)
		if s, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(s, "OK") {
			t.Fatalf("%s: %q %v", line, s, err)
		}
	}
}

// TestQEMUMessages uses guest memory that comes without descriptors.
func TestQEMUMessages(t *testing.T) {
	qtest := filepath.Join(tempDir(t), "qtest")
	m := startQEMU(t, "-qtest", "unix:"+qtest+",server=on,wait=off", "-qtest-log", "none")
	f := serve(t, func(c *Config) { c.HideMSIXAtRealize = true })
	f.dev.set(func(d *testDevice) { copy(d.mem[7], qemuConfigSpace()) })
	m.do("device_add", map[string]any{
		"driver": "vfio-user-pci", "id": "v0", "bus": "rp0",
		"socket": map[string]string{"type": "unix", "path": f.path},
	})
	c := <-f.dev.connected
	m.do("system_reset", nil)
	bar := m.bar0(f)
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
	enableBusMaster(t, qtest)
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
