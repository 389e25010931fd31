//go:build linux

package cli

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/share"
)

// A box file divides GPUs; each slice is a slot, and the rest is divided equally.
func TestBoxFileSlices(t *testing.T) {
	for _, c := range []struct {
		name, file, slots, err string
	}{
		{
			"a number", "[{gpu: {vram: 4194304, model: M}, slices: 2, switch: s}, {}, {gpu: {}}]",
			"M 1/2 2097152 online 50/50 s; M 1/2 2097152 online 50/50 s; empty; DxPU software GPU 268435456", "",
		},
		{
			"a list", "[{gpu: {vram: 4194304, model: M}, policy: gemini, slices: [{memory: 1048576, compute: 70, limit: 90}, {class: offline}, {}]}]",
			"M 1/4 1048576 online 70/90; M 3/8 1572864 offline 15/15; M 3/8 1572864 online 15/15", "",
		},
		{"memory beyond the GPU", "[{gpu: {vram: 65536}, slices: [{memory: 65536}, {memory: 65536}]}]", "", "slot 0: the slices have more memory"},
		{"compute beyond the GPU", "[{}, {gpu: {}, slices: [{compute: 60}, {compute: 41}]}]", "", "slot 1: the slices have more than 100 percent"},
		{"no compute left", "[{gpu: {}, slices: [{compute: 100}, {}]}]", "", "more than 100 percent"},
		{"too small", "[{gpu: {vram: 65536}, slices: 2}]", "", "slice 1"},
		{"too many", "[{gpu: {}, slices: 17}]", "", "want 1 to 16"},
		{"none", "[{gpu: {}, slices: 0}]", "", "want 1 to 16"},
		{"huge", "[{gpu: {}, slices: 99999999999}]", "", "slices"},
		{"wrong class", "[{gpu: {}, slices: [{class: fast}]}]", "", "online or offline"},
		{"not a number", "[{gpu: {}, slices: [{compute: .nan}]}]", "", "percent"},
		{"unknown field", "[{gpu: {}, slices: [{speed: 3}]}]", "", "speed"},
		{"unknown policy", "[{gpu: {}, slices: 2, policy: fair}]", "", "dxpu share policies"},
		{"policy alone", "[{gpu: {}, policy: mps}]", "", "no slices"},
		{"no GPU", "[{slices: 2}]", "", "only a software GPU"},
		{"another device", "[{vfio_user: /run/none, slices: 2}]", "", "only a software GPU"},
		{"slots", "[" + strings.Repeat("{gpu: {}, slices: 16},", 17) + "]", "", "at most 256"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "box.yaml")
			if err := os.WriteFile(path, []byte("slots: "+c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			o := boxOptions{proxyOptions: proxyOptions{name: "b"}, config: path}
			slots, err := o.slots(t.Context(), deviceModels(slog.New(slog.DiscardHandler)))
			var got []string
			for _, s := range slots {
				if s.Device == nil {
					got = append(got, "empty")
					continue
				}
				info := s.Device.(device.Describer).Info()
				text := fmt.Sprintf("%s %d", info.Model, info.Memory)
				if s.Slice != nil {
					p := s.Slice.Spec
					text += fmt.Sprintf(" %v %d/%d", p.Class, p.Request/share.Percent(1), p.Limit/share.Percent(1))
				}
				got = append(got, strings.TrimSpace(text+" "+s.PCISwitch))
			}
			switch {
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("error %v, want one with %q", err, c.err)
			case c.err == "" && (err != nil || strings.Join(got, "; ") != c.slots):
				t.Errorf("slots %q, error %v, want %q", strings.Join(got, "; "), err, c.slots)
			}
		})
	}
}
