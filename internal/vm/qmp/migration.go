package qmp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
)

// BlockMigration makes QEMU refuse to migrate the VM and to take a snapshot of it, until
// [Client.AllowMigration]. QEMU has no command for that, and vfio-user-pci does not
// ask for it: a migration of a VM with such a device succeeds without the device's
// state. But QEMU refuses while it has an image open whose format cannot be
// migrated, such as the first version of qcow, and its error has the name of the
// node. The image is empty and belongs to no device. BlockMigration writes it to dir, where
// QEMU can read, and removes it at once.
func (c *Client) BlockMigration(ctx context.Context, node, dir string) error {
	name, err := writeQcow(dir)
	if err != nil {
		return fmt.Errorf("qmp: image that blocks migration: %w", err)
	}
	err = c.Execute(ctx, "blockdev-add", map[string]any{
		"driver": "qcow", "node-name": node, "read-only": true,
		"file": map[string]string{"driver": "file", "filename": name},
	}, nil)
	if isDesc(err, "Duplicate nodes") {
		err = nil // it is blocked already
	}
	return errors.Join(err, os.Remove(name))
}

// AllowMigration ends BlockMigration, if it is in force.
func (c *Client) AllowMigration(ctx context.Context, node string) error {
	err := c.Execute(ctx, "blockdev-del", map[string]string{"node-name": node}, nil)
	if isDesc(err, "Failed to find node") {
		return nil
	}
	return err
}

// isDesc reports whether QEMU refused with a text: it has no error classes for these.
func isDesc(err error, text string) bool {
	var e *Error
	return errors.As(err, &e) && strings.Contains(e.Desc, text)
}

// writeQcow writes an image of version 1: a header in big endian, and a table of
// clusters of which none is allocated.
//
//	 0       4         8               24     32             33      34         40
//	+-------+---------+---------------+------+--------------+-------+----------+----------+
//	| magic | version | backing, time | size | cluster bits | L2    | reserved | L1 table |
//	+-------+---------+---------------+------+--------------+-------+----------+----------+
func writeQcow(dir string) (name string, err error) {
	const table, size = 512, 1 << 20
	image := make([]byte, 1024)
	copy(image, "QFI\xfb")
	binary.BigEndian.PutUint32(image[4:], 1)
	binary.BigEndian.PutUint64(image[24:], size)
	image[32], image[33] = 12, 9 // clusters of 4 KiB, 512 of them in an L2 table
	binary.BigEndian.PutUint64(image[40:], table)
	f, err := os.CreateTemp(dir, "no-migration-*.qcow")
	if err != nil {
		return "", err
	}
	_, err = f.Write(image)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}
