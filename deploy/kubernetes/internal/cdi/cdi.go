// Package cdi writes specifications of the Container Device Interface: files in a
// directory, from which the container runtime takes what a device adds to a container.
// https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Kind is the kind of the devices: vendor and class.
const Kind = "dxpu.dev/gpu"

// version is the version of the specification, the first with what is used here: annotations.
const version = "0.6.0"

// Edits are what a device adds to a container.
type Edits struct {
	Env         []string     `json:"env,omitempty"` // NAME=VALUE
	DeviceNodes []DeviceNode `json:"deviceNodes,omitempty"`
	Mounts      []Mount      `json:"mounts,omitempty"`
}

// DeviceNode is a device file.
type DeviceNode struct {
	Path string `json:"path"`
}

// Mount is a bind mount.
type Mount struct {
	HostPath      string   `json:"hostPath"`
	ContainerPath string   `json:"containerPath"`
	Options       []string `json:"options,omitempty"`
}

// Device is a device of a specification.
type Device struct {
	Name  string `json:"name"`
	Edits Edits  `json:"containerEdits"`
}

type spec struct {
	Version     string            `json:"cdiVersion"`
	Kind        string            `json:"kind"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Devices     []Device          `json:"devices"`
}

// Owner is the claim that has devices.
type Owner struct{ Namespace, Name, UID string }

// String returns the name of a claim and its UID.
func (o Owner) String() string { return fmt.Sprintf("%s/%s (%s)", o.Namespace, o.Name, o.UID) }

// The annotations of a specification. That of the boot tells those which are left from before: the
// directory may survive it.
const (
	annotationNamespace = "dxpu.dev/claim-namespace"
	annotationName      = "dxpu.dev/claim-name"
	annotationBoot      = "dxpu.dev/boot-id"
)

// bootFile has an ID of the time since the machine was started.
const bootFile = "/proc/sys/kernel/random/boot_id"

// boot returns the ID of this boot, "" if the system has none.
var boot = sync.OnceValue(func() string {
	id, err := os.ReadFile(bootFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
})

// Dir is a directory with specifications, one file for each claim.
type Dir string

// prefix begins the names of the files, which other drivers' files do not have.
const prefix = "gpu.dxpu.dev-"

func (d Dir) path(claim string) string { return filepath.Join(string(d), prefix+claim+".json") }

func (d Dir) temporary(claim string) string {
	return filepath.Join(string(d), "."+prefix+claim+".tmp")
}

// ID returns the qualified name of a device.
func ID(name string) string { return Kind + "=" + name }

// Write writes the devices of a claim in one step, in place of earlier ones.
func (d Dir) Write(claim Owner, devices []Device) error {
	annotations := map[string]string{annotationNamespace: claim.Namespace, annotationName: claim.Name, annotationBoot: boot()}
	raw, err := json.MarshalIndent(spec{version, Kind, annotations, devices}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return fmt.Errorf("the directory of CDI specifications: %w", err)
	}
	// The runtime reads names that end in .json only. The name is that of the claim, so that what a
	// plugin leaves which is killed here goes with the claim.
	temporary := d.temporary(claim.UID)
	if err = os.WriteFile(temporary, raw, 0o644); err == nil {
		err = os.Chmod(temporary, 0o644) // also with another umask, and if a file was left
	}
	if err == nil {
		err = os.Rename(temporary, d.path(claim.UID))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("CDI specification of claim %s: %w", claim.UID, err), d.remove(temporary))
	}
	return nil
}

// Remove removes the devices of a claim. It is no error if there are none.
func (d Dir) Remove(claim string) error {
	return errors.Join(d.remove(d.path(claim)), d.remove(d.temporary(claim)))
}

func (d Dir) remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("CDI specification: %w", err)
	}
	return nil
}

// User returns a claim, other than a given one, whose containers may have a device file or a mount of a
// path of the node; nil: there is none. No container has what is left from before the machine was
// started, nor what the runtime cannot read.
func (d Dir) User(path, except string) (*Owner, error) {
	all, err := d.specs()
	if err != nil {
		return nil, err
	}
	for claim, s := range all {
		if at := s.Annotations[annotationBoot]; claim != except && s.has(path) && (at == "" || at == boot()) {
			return &Owner{s.Annotations[annotationNamespace], s.Annotations[annotationName], claim}, nil
		}
	}
	return nil, nil
}

// specs returns the specifications that can be read, by claim.
func (d Dir) specs() (map[string]spec, error) {
	claims, err := d.Claims()
	if err != nil {
		return nil, err
	}
	out := map[string]spec{}
	for _, claim := range claims {
		s, err := d.read(claim)
		var syntax *json.SyntaxError
		var typ *json.UnmarshalTypeError
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed since
		case errors.As(err, &syntax), errors.As(err, &typ): // as after a loss of power
		case err != nil:
			return nil, err
		default:
			out[claim] = s
		}
	}
	return out, nil
}

func (d Dir) read(claim string) (s spec, err error) {
	raw, err := os.ReadFile(d.path(claim))
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err != nil {
		return s, fmt.Errorf("CDI specification of claim %s: %w", claim, err)
	}
	return s, nil
}

// Owners returns the claims that have devices, without those whose names an earlier version of
// the driver has not written.
func (d Dir) Owners() (out []Owner, err error) {
	all, err := d.specs()
	for claim, s := range all {
		if name := s.Annotations[annotationName]; name != "" {
			out = append(out, Owner{s.Annotations[annotationNamespace], name, claim})
		}
	}
	return out, err
}

func (s *spec) has(path string) bool {
	for _, d := range s.Devices {
		if slices.ContainsFunc(d.Edits.DeviceNodes, func(n DeviceNode) bool { return n.Path == path }) ||
			slices.ContainsFunc(d.Edits.Mounts, func(m Mount) bool { return m.HostPath == path }) {
			return true
		}
	}
	return false
}

// Claims returns the claims that have devices.
func (d Dir) Claims() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(string(d), prefix+"*.json"))
	out := make([]string, len(files))
	for i, f := range files {
		out[i] = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), prefix), ".json")
	}
	return out, err
}
