package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
)

// params are those of a model that only this test knows.
type params struct {
	Path  string `yaml:"path"`
	Lanes int    `yaml:"lanes,omitempty"`
}

// Slots are built by the names of the models in the table.
func TestBoxFileDevices(t *testing.T) {
	var mu sync.Mutex // guards made: slots are made side by side
	var made []string
	note := func(name string) func(context.Context, device.Place, params) (device.Device, error) {
		return func(_ context.Context, at device.Place, p params) (device.Device, error) {
			if p.Lanes < 0 {
				return nil, errors.New("lanes below zero")
			}
			mu.Lock()
			defer mu.Unlock()
			made = append(made, fmt.Sprintf("%s/%d %s %+v", at.Box, at.Slot, name, p))
			return nil, nil
		}
	}
	models := []device.Model{device.NewModel("alpha", "first", "path", note("alpha")), device.NewModel("beta", "second", "", note("beta"))}
	for _, c := range []struct {
		name, file, made, err string
	}{
		{"mapping", "[{alpha: {path: /a, lanes: 4}}]", "b/0 alpha {Path:/a Lanes:4}", ""},
		{"scalar", "[{}, {alpha: /a}]", "b/1 alpha {Path:/a Lanes:0}", ""},
		{"parameter beside the model", "[{alpha: /a, lanes: 2, nvlink: x}]", "b/0 alpha {Path:/a Lanes:2}", ""},
		{"without parameters", "[{beta: }, {beta: {}}]", "b/0 beta {Path: Lanes:0}; b/1 beta {Path: Lanes:0}", ""},
		{"anchor", "[{alpha: &a {path: /a}}, {beta: *a}]", "b/0 alpha {Path:/a Lanes:0}; b/1 beta {Path:/a Lanes:0}", ""},
		{"two models", "[{alpha: /a, beta: {}}]", "", "a slot holds one device"},
		{"no model", "[{gamma: 1}]", "", "gamma: want the model of the device, one of alpha, beta"},
		{"unknown parameter", "[{alpha: {paths: /a}}]", "", "paths"},
		{"unknown parameter beside the model", "[{alpha: /a, lane: 1}]", "", "lane"},
		{"scalar that means nothing", "[{beta: /a}]", "", "want a mapping"},
		{"twice", "[{alpha: /a, path: /b}]", "", "path"},
		{"refused by the model", "[{alpha: /a, lanes: -1}]", "", "slot 0: lanes below zero"},
		{"wrong type", "[{alpha: {lanes: many}}]", "", "many"},
		{"none", "[]", "", "0 slots"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "box.yaml")
			if err := os.WriteFile(path, []byte("slots: "+c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			made = nil
			o := boxOptions{proxyOptions: proxyOptions{name: "b"}, config: path}
			_, err := o.slots(t.Context(), models)
			switch {
			case c.err == "" && err != nil:
				t.Error(err)
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("error %v, want one with %q", err, c.err)
			case c.err == "" && strings.Join(slices.Sorted(slices.Values(made)), "; ") != c.made:
				t.Errorf("made %q, want %q", made, c.made)
			}
		})
	}
}

// A slot whose device takes long to make does not delay the others: here each waits
// until all are being made. The error is that of the first slot.
func TestSlotsAreMadeSideBySide(t *testing.T) {
	const slots = 4
	var begun sync.WaitGroup
	begun.Add(slots)
	all := make(chan struct{})
	go func() {
		begun.Wait()
		close(all)
	}()
	model := device.NewModel("slow", "", "path", func(_ context.Context, at device.Place, _ params) (device.Device, error) {
		begun.Done()
		select {
		case <-all:
			return nil, fmt.Errorf("made as %d", at.Slot)
		case <-time.After(20 * time.Second):
			return nil, errors.New("alone")
		}
	})
	path := filepath.Join(t.TempDir(), "box.yaml")
	if err := os.WriteFile(path, []byte("slots: ["+strings.Repeat("{slow: /a}, ", slots)+"]"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := boxOptions{proxyOptions: proxyOptions{name: "b"}, config: path}
	if _, err := o.slots(t.Context(), []device.Model{model}); err == nil || err.Error() != "slot 0: made as 0" {
		t.Error(err)
	}
}

// The models of the program take the parameters of their documentation.
func TestBoxFileOfTheHelp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	path := filepath.Join(t.TempDir(), "box.yaml")
	file := `slots:
    - gpu: {model: "V100", vram: 268435456, tags: 140, max_read_request: 128}
      switch: s0
    - vfio_user: ` + socket + `
      message_dma: true
    - {}
`
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	o := boxOptions{proxyOptions: proxyOptions{name: "b"}, config: path, kind: dxpuv1.BoxKind_BOX_KIND_NVLINK}
	slots, err := o.slots(t.Context(), deviceModels(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	if len(slots) != 3 || slots[2].Device != nil {
		t.Fatalf("slots %+v", slots)
	}
	info := slots[0].Device.(device.Describer).Info()
	if info.Model != "V100" || info.Serial == "" || slots[0].PCISwitch != "s0" || slots[0].NVLink != "nvlink0" {
		t.Errorf("slot 0 %+v: %+v", slots[0], info)
	}
	// The server is absent: that is the slot's own trouble.
	if ok, why := slots[1].Device.(device.Checker).Check(); ok || !strings.Contains(why, socket) {
		t.Errorf("slot 1 works: %v (%s)", ok, why)
	}
	again, err := o.slots(t.Context(), deviceModels(slog.New(slog.DiscardHandler)))
	if err != nil || again[0].Device.(device.Describer).Info() != info {
		t.Errorf("another serial number at the next start: %v", err)
	}
}
