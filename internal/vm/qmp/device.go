package qmp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
)

// A Device describes a device for device_add.
type Device struct {
	Driver string         // such as "vfio-user-pci"
	ID     string         // for its removal
	Bus    string         // such as "rp0"; "" lets QEMU choose
	Props  map[string]any // further properties, marshalled as JSON
}

// DeviceAdd plugs a device. It returns when QEMU has realized it; the guest sees it later.
func (c *Client) DeviceAdd(ctx context.Context, d Device) error {
	args := maps.Clone(d.Props)
	if args == nil {
		args = map[string]any{}
	}
	args["driver"], args["id"] = d.Driver, d.ID
	if d.Bus != "" {
		args["bus"] = d.Bus
	}
	return c.Execute(ctx, "device_add", args, nil)
}

// VFIOUser is a vfio-user-pci device whose server listens at the UNIX socket path.
func VFIOUser(id, bus, path string) Device {
	return Device{
		Driver: "vfio-user-pci", ID: id, Bus: bus,
		Props: map[string]any{"socket": map[string]string{"type": "unix", "path": path}},
	}
}

// HasDevice reports whether there is a device of an ID, including one under removal.
func (c *Client) HasDevice(ctx context.Context, id string) (bool, error) {
	var children []struct {
		Name string `json:"name"`
	}
	err := c.Execute(ctx, "qom-list", map[string]string{"path": "/machine/peripheral"}, &children)
	for _, child := range children {
		if child.Name == id {
			return true, err
		}
	}
	return false, err
}

// DeviceDel asks for the removal of a device and returns at once; the guest must agree to
// it. [Client.Unplug] waits.
func (c *Client) DeviceDel(ctx context.Context, id string) error {
	return c.Execute(ctx, "device_del", map[string]string{"id": id}, nil)
}

// ErrUnplugRefused is the cause of an Unplug that the guest refused.
var ErrUnplugRefused = errors.New("guest refused to let the device go")

// Unplug removes a device and waits until QEMU has destroyed it (DEVICE_DELETED). A guest
// may never answer: give ctx a deadline. An Unplug of a device that is under removal
// already waits for the same end.
func (c *Client) Unplug(ctx context.Context, id string) error {
	s := c.Subscribe("DEVICE_DELETED", "DEVICE_UNPLUG_GUEST_ERROR", "ACPI_DEVICE_OST")
	defer s.Close()
	if err := c.DeviceDel(ctx, id); err != nil && !pendingUnplug(err) {
		return err
	}
	for {
		e, err := s.Next(ctx)
		if err != nil {
			return fmt.Errorf("unplug %s: %w", id, err)
		}
		gone, err := unplugged(e, id)
		if err != nil {
			return fmt.Errorf("qmp: unplug %s: %w", id, err)
		}
		if gone {
			return nil
		}
	}
}

// pendingUnplug reports whether QEMU refused a second device_del only because the first is
// still under way. QEMU has no error class for it, only the text.
func pendingUnplug(err error) bool {
	var e *Error
	return errors.As(err, &e) && strings.Contains(e.Desc, "in the process of unplug")
}

// Notifications of a guest about an ejection (ACPI 6.5, section 6.3.5, tables 6.64 and 6.66).
const (
	ostEjectRequest   = 0x03
	ostEjectByOS      = 0x103
	ostSuccess        = 0x00
	ostEjectInProcess = 0x84
)

// unplugged reports whether an event means that the device is gone, or that the guest keeps it.
func unplugged(e Event, id string) (gone bool, err error) {
	var data struct {
		Device string `json:"device"`
		Info   struct {
			Device string `json:"device"`
			Source int    `json:"source"`
			Status int    `json:"status"`
		} `json:"info"`
	}
	if err := json.Unmarshal(e.Data, &data); err != nil {
		return false, fmt.Errorf("%s: %w", e.Name, err)
	}
	switch e.Name {
	case "DEVICE_DELETED": // also comes without a name, for the parts of a device
		return data.Device == id, nil
	case "DEVICE_UNPLUG_GUEST_ERROR":
		if data.Device == id {
			return false, ErrUnplugRefused
		}
	case "ACPI_DEVICE_OST":
		i := data.Info
		ejection := i.Source == ostEjectRequest || i.Source == ostEjectByOS
		if i.Device == id && ejection && i.Status != ostSuccess && i.Status != ostEjectInProcess {
			return false, fmt.Errorf("%w: _OST status %#x", ErrUnplugRefused, i.Status)
		}
	}
	return false, nil
}
