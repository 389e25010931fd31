package hostproxy_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
)

// fakeQEMU is the control socket of a QEMU, with a guest that drives every
// device that is plugged in. As the real one, it serves one client at a time.
type fakeQEMU struct {
	t    testing.TB
	path string

	mu      sync.Mutex
	client  net.Conn
	devices map[string]*vfiouserbus.Bus // by ID; nil: no proxy answers for it
	adds    map[string]int
	blocked map[string]bool // nodes that block migration
	refuse  string          // what device_add answers; "": it plugs in
	private string          // type of a memory backend that is not shared; "": all are
	stall   chan struct{}   // nil, or device_add waits until it is closed
	// onAdd takes the place of the guest of a device that is plugged in, before device_add ends.
	onAdd func(socket string)
	// onDelete is what the guest makes of the request to eject a device: letGo,
	// holdOn or decline. Default letGo.
	onDelete func(id string) guestAnswer
}

type guestAnswer int

const (
	letGo guestAnswer = iota
	holdOn
	decline
)

func newFakeQEMU(t testing.TB) *fakeQEMU {
	t.Helper()
	dir, err := os.MkdirTemp("", "qmp") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	q := &fakeQEMU{
		t: t, path: filepath.Join(dir, "s"), devices: map[string]*vfiouserbus.Bus{}, adds: map[string]int{}, blocked: map[string]bool{},
		onDelete: func(string) guestAnswer { return letGo },
	}
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", q.path)
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			q.serve(conn)
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		q.mu.Lock()
		if q.client != nil {
			_ = q.client.Close()
		}
		q.mu.Unlock()
		done.Wait()
		for id := range q.devices {
			q.eject(id)
		}
		_ = os.RemoveAll(dir)
	})
	return q
}

func (q *fakeQEMU) serve(conn net.Conn) {
	q.mu.Lock()
	q.client = conn
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		q.client = nil
		q.mu.Unlock()
		_ = conn.Close()
	}()
	q.say(`{"QMP": {"version": {"qemu": {"micro": 3, "minor": 1, "major": 11}, "package": ""}, "capabilities": []}}`)
	for in := bufio.NewScanner(conn); in.Scan(); {
		var c struct {
			Execute   string `json:"execute"`
			Arguments struct {
				ID     string `json:"id"`
				Node   string `json:"node-name"`
				Socket struct {
					Path string `json:"path"`
				} `json:"socket"`
			} `json:"arguments"`
			ID uint64 `json:"id"`
		}
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			q.t.Errorf("the fake QEMU is told %q", in.Text())
			return
		}
		id, result, problem := c.Arguments.ID, "{}", ""
		after := func() {}
		switch c.Execute {
		case "device_add":
			problem = q.add(id, c.Arguments.Socket.Path)
		case "device_del":
			after = q.ask(id)
			if after == nil {
				problem, after = "Device '"+id+"' not found", func() {}
			}
		case "blockdev-add", "blockdev-del":
			problem = q.block(c.Arguments.Node, c.Execute == "blockdev-add")
		case "query-memdev":
			result = fmt.Sprintf(`[{"id": "mem", "size": 1, "share": true}, {"id": "m2", "size": 1, "share": %v}]`, q.backend() == "")
		case "qom-get":
			result = fmt.Sprintf("%q", q.backend())
		case "qom-list":
			result = q.list()
		}
		if problem != "" {
			q.say(fmt.Sprintf(`{"error": {"class": "GenericError", "desc": %q}, "id": %d}`, problem, c.ID))
		} else {
			q.say(fmt.Sprintf(`{"return": %s, "id": %d}`, result, c.ID))
		}
		after()
	}
}

// say sends a line to the client, if there is one.
func (q *fakeQEMU) say(line string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.client != nil {
		_, _ = fmt.Fprintln(q.client, line)
	}
}

func (q *fakeQEMU) add(id, socket string) (problem string) {
	q.mu.Lock()
	_, there := q.devices[id]
	refuse, stall, onAdd := q.refuse, q.stall, q.onAdd
	q.adds[id]++
	q.mu.Unlock()
	if stall != nil {
		<-stall
	}
	switch {
	case refuse != "":
		return refuse
	case there:
		return "Duplicate device ID '" + id + "'"
	case onAdd != nil:
		onAdd(socket)
		return ""
	}
	var slot int
	if _, err := fmt.Sscanf(id, "dxpu%d", &slot); err != nil {
		return err.Error()
	}
	o := vfiouserbus.Options{BAR32: 0xc000_0000 + uint64(slot)<<24, BAR64: 0x80_0000_0000 + uint64(slot)<<36}
	bus, err := o.Open(q.t.Context(), socket)
	if err != nil {
		return err.Error()
	}
	q.mu.Lock()
	q.devices[id] = bus
	q.mu.Unlock()
	return ""
}

// ask asks the guest to eject a device. It returns the work that follows the answer
// to the command; nil: there is no such device.
func (q *fakeQEMU) ask(id string) func() {
	q.mu.Lock()
	_, there := q.devices[id]
	answer := q.onDelete
	q.mu.Unlock()
	if !there {
		return nil
	}
	switch answer(id) {
	case holdOn:
		return func() {}
	case decline:
		return func() {
			q.say(fmt.Sprintf(`{"event": "ACPI_DEVICE_OST", "timestamp": {"seconds": 1, "microseconds": 2}, `+
				`"data": {"info": {"device": %q, "slot": "1", "slot-type": "DIMM", "source": 3, "status": 1}}}`, id))
		}
	}
	return func() { q.eject(id) }
}

// eject lets the guest eject a device, asked or not.
func (q *fakeQEMU) eject(id string) {
	q.mu.Lock()
	bus, there := q.devices[id]
	delete(q.devices, id)
	q.mu.Unlock()
	if !there {
		return
	}
	if bus != nil {
		_ = bus.Close()
	}
	q.say(fmt.Sprintf(`{"event": "DEVICE_DELETED", "timestamp": {"seconds": 1, "microseconds": 2}, "data": {"device": %q, "path": "/p"}}`, id))
}

// hangUp ends the connection of a device that stays plugged in.
func (q *fakeQEMU) hangUp(id string) {
	q.mu.Lock()
	bus := q.devices[id]
	q.devices[id] = nil
	q.mu.Unlock()
	_ = bus.Close()
}

// release ends a stall.
func (q *fakeQEMU) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stall != nil {
		close(q.stall)
		q.stall = nil
	}
}

// without lets something happen that the VM hears nothing of, as when a proxy is
// killed, but that its devices answer no more.
func (q *fakeQEMU) without(f func()) {
	check(q.t, os.Rename(q.path, q.path+"x"))
	q.mu.Lock()
	if q.client != nil {
		_ = q.client.Close()
	}
	q.mu.Unlock()
	f()
	q.mu.Lock()
	for id, bus := range q.devices {
		if bus != nil {
			check(q.t, bus.Close())
		}
		q.devices[id] = nil
	}
	q.mu.Unlock()
	check(q.t, os.Rename(q.path+"x", q.path))
}

func (q *fakeQEMU) list() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	children := []map[string]string{{"name": "type", "type": "string"}}
	for id := range q.devices {
		children = append(children, map[string]string{"name": id, "type": "child<vfio-user-pci>"})
	}
	raw, err := json.Marshal(children)
	if err != nil {
		q.t.Error(err)
	}
	return string(raw)
}

// block opens or closes an image.
func (q *fakeQEMU) block(node string, open bool) (problem string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case open && q.blocked[node]:
		return "Duplicate nodes with node-name='" + node + "'"
	case !open && !q.blocked[node]:
		return "Failed to find node with node-name='" + node + "'"
	}
	q.blocked[node] = open
	return ""
}

// blocks reports whether migration is blocked.
func (q *fakeQEMU) blocks() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, open := range q.blocked {
		if open {
			return true
		}
	}
	return false
}

// backend returns the type of the memory backend that is not shared.
func (q *fakeQEMU) backend() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.private
}

// has reports whether a device is plugged in, and alive.
func (q *fakeQEMU) has(id string) (there, alive bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	bus, there := q.devices[id]
	return there, bus != nil
}

func (q *fakeQEMU) set(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f()
}

// answers sets what the guest makes of all requests to eject a device from now on.
func (q *fakeQEMU) answers(a guestAnswer) {
	q.set(func() { q.onDelete = func(string) guestAnswer { return a } })
}
