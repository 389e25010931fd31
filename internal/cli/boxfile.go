package cli

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/vfioserver"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
)

// deviceModels returns the models of devices that a box can hold. A new model
// needs no other change here than its line.
func deviceModels(log *slog.Logger) []device.Model {
	return []device.Model{
		gpu.Model(),
		vfioserver.Model(log),
	}
}

// modelHelp lists models and their parameters for the help of a command.
func modelHelp(models []device.Model) string {
	var b strings.Builder
	for _, m := range models {
		fmt.Fprintf(&b, "  %s: %s\n", m.Name, m.Help)
		for names := range slices.Chunk(m.Params, 5) {
			fmt.Fprintf(&b, "      %s\n", strings.Join(names, ", "))
		}
	}
	return b.String()
}

// boxFile is the file that --config of a box names.
type boxFile struct {
	Slots []boxSlot `yaml:"slots"`
}

// boxSlot is a slot of a boxFile. An empty slot has no parameters.
type boxSlot struct {
	NVLink string `yaml:"nvlink,omitempty"` // domain
	Switch string `yaml:"switch,omitempty"` // PCIe switch of the box
	// Params holds the parameters of the device under the name of its model. A
	// parameter may also stand beside the model.
	Params map[string]yaml.Node `yaml:",inline"`
}

// maxBoxFile bounds the file of a box, in bytes: some hundred for each slot.
const maxBoxFile = 64 << 10

// parseBoxFile reads a boxFile with devices of the given models.
func parseBoxFile(raw []byte, models []device.Model) (file boxFile, err error) {
	if len(raw) > maxBoxFile {
		return file, fmt.Errorf("%d bytes: want at most %d", len(raw), maxBoxFile)
	}
	if err := yaml.Load(raw, &file, yaml.WithKnownFields(true)); err != nil {
		return boxFile{}, fmt.Errorf("%.*s", maxYAMLError, err)
	}
	if n := len(file.Slots); n < 1 || n > boxproxy.MaxSlots {
		return boxFile{}, fmt.Errorf("%d slots: want 1 to %d", n, boxproxy.MaxSlots)
	}
	for i := range file.Slots {
		if _, _, err := file.Slots[i].device(models); err != nil {
			return boxFile{}, fmt.Errorf("slot %d: %w", i, err)
		}
	}
	return file, nil
}

// device returns the model of the slot's device and a decoder of its
// parameters. The model of an empty slot is nil.
func (s *boxSlot) device(models []device.Model) (model *device.Model, decode func(any) error, err error) {
	var names []string
	for i, m := range models {
		names = append(names, m.Name)
		if _, ok := s.Params[m.Name]; !ok {
			continue
		}
		if model != nil {
			return nil, nil, fmt.Errorf("both %s and %s: a slot holds one device", model.Name, m.Name)
		}
		model = &models[i]
	}
	switch {
	case len(s.Params) == 0:
		return nil, nil, nil
	case model == nil:
		got := fmt.Sprintf("%.*s", maxYAMLError/2, strings.Join(slices.Sorted(maps.Keys(s.Params)), ", "))
		return nil, nil, fmt.Errorf("%s: want the model of the device, one of %s", got, strings.Join(names, ", "))
	}
	params := yaml.Node{Kind: yaml.MappingNode}
	set := func(name string, value yaml.Node) {
		params.Content = append(params.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, &value)
	}
	for name, value := range s.Params {
		if value.Kind == yaml.AliasNode {
			value = *value.Alias
		}
		switch {
		case name != model.Name:
			set(name, value)
		case value.Kind == yaml.MappingNode:
			params.Content = append(params.Content, value.Content...)
		case value.ShortTag() == "!!null":
		case model.Main == "":
			return nil, nil, fmt.Errorf("%s: want a mapping of parameters", name)
		default:
			set(model.Main, value)
		}
	}
	return model, func(v any) error {
		if err := params.Load(v, yaml.WithKnownFields(true)); err != nil {
			return fmt.Errorf("%.*s", maxYAMLError, err)
		}
		return nil
	}, nil
}
