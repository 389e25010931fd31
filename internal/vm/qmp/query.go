package qmp

import (
	"context"
	"errors"
)

// A PCIBus is one bus, with the number that the guest's firmware or kernel gave it.
type PCIBus struct {
	Bus     int         `json:"bus"`
	Devices []PCIDevice `json:"devices"`
}

// A PCIDevice is one function.
type PCIDevice struct {
	Bus      int    `json:"bus"`
	Slot     int    `json:"slot"`
	Function int    `json:"function"`
	QdevID   string `json:"qdev_id"` // the id given to device_add or -device
	ID       struct {
		Vendor uint16 `json:"vendor"`
		Device uint16 `json:"device"`
	} `json:"id"`
	Class struct {
		Class uint16 `json:"class"`
		Desc  string `json:"desc"`
	} `json:"class_info"`
	Regions []PCIRegion `json:"regions"`
	Bridge  *PCIBridge  `json:"pci_bridge"` // nil unless it is a bridge
}

// A PCIRegion is one BAR.
type PCIRegion struct {
	BAR     int    `json:"bar"`
	Type    string `json:"type"`    // "memory" or "io"
	Address int64  `json:"address"` // -1: the guest has not mapped it
	Size    int64  `json:"size"`    // bytes
}

// A PCIBridge describes the buses behind a bridge.
type PCIBridge struct {
	Bus struct {
		Number      int `json:"number"`
		Secondary   int `json:"secondary"`
		Subordinate int `json:"subordinate"`
	} `json:"bus"`
	Devices []PCIDevice `json:"devices"`
}

// QueryPCI returns the PCI devices of the machine.
func (c *Client) QueryPCI(ctx context.Context) ([]PCIBus, error) {
	var buses []PCIBus
	err := c.Execute(ctx, "query-pci", nil, &buses)
	return buses, err
}

// FindPCI looks for the device with this id on the buses and behind their bridges.
func FindPCI(buses []PCIBus, id string) (PCIDevice, bool) {
	for _, b := range buses {
		if d, ok := findPCI(b.Devices, id); ok {
			return d, true
		}
	}
	return PCIDevice{}, false
}

func findPCI(devices []PCIDevice, id string) (PCIDevice, bool) {
	for _, d := range devices {
		if d.QdevID == id {
			return d, true
		}
		if d.Bridge != nil {
			if found, ok := findPCI(d.Bridge.Devices, id); ok {
				return found, true
			}
		}
	}
	return PCIDevice{}, false
}

// Status is the run state of the machine, such as "running", "paused" or "shutdown".
func (c *Client) Status(ctx context.Context) (string, error) {
	var s struct {
		Status string `json:"status"`
	}
	err := c.Execute(ctx, "query-status", nil, &s)
	return s.Status, err
}

// SystemReset resets the machine as its reset button would.
func (c *Client) SystemReset(ctx context.Context) error {
	return c.Execute(ctx, "system_reset", nil, nil)
}

// Quit ends QEMU and waits until it has closed the connection.
func (c *Client) Quit(ctx context.Context) error {
	// QEMU may be gone before its reply is.
	if err := c.Execute(ctx, "quit", nil, nil); err != nil && !errors.Is(err, ErrClosed) {
		return err
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
