package device

import (
	"context"
	"fmt"
	"hash/fnv"
	"reflect"
	"strings"
)

// Model is a kind of device that a slot of a box can hold. A program collects
// its models in a table and looks them up by name.
type Model struct {
	Name   string   // in a box file, such as "gpu"
	Help   string   // one line
	Params []string // names of the parameters
	// Main is the parameter that a plain value sets: with "socket", a box file
	// may say "vfio_user: /run/nvme.sock". It is empty when there is none.
	Main string
	// New makes a device at a place. decode fills in the structure of the
	// model's parameters and refuses parameters that the structure lacks.
	New func(ctx context.Context, at Place, decode func(params any) error) (Device, error)
}

// NewModel makes a model whose parameters are the fields of the structure P,
// under the names of their yaml tags.
func NewModel[P any](name, help, main string, build func(context.Context, Place, P) (Device, error)) Model {
	var names []string
	for f := range reflect.TypeFor[P]().Fields() {
		tag, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		names = append(names, tag)
	}
	return Model{name, help, names, main, func(ctx context.Context, at Place, decode func(any) error) (Device, error) {
		var params P
		if err := decode(&params); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return build(ctx, at, params)
	}}
}

// Place is a slot of a box.
type Place struct {
	Box  string // name of the node
	Slot int
}

// Serial makes a serial number that is the same each time the box starts.
func (p Place) Serial() uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s/%d", p.Box, p.Slot)
	return h.Sum64()
}
