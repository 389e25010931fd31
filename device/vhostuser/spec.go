package vhostuser

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/device/virtio"
)

// Spec describes a virtio device and names its back end. The zero value of a field means its
// default.
type Spec struct {
	Socket string `yaml:"socket"`           // path of the back end's UNIX socket
	Type   string `yaml:"type,omitempty"`   // blk, fs, net or vsock; blk
	Model  string `yaml:"model,omitempty"`  // name for leases; virtio-blk and so on
	Queues int    `yaml:"queues,omitempty"` // virtqueues; as few as the type needs
	Pool   int    `yaml:"pool,omitempty"`   // bytes of memory for the requests of a virtqueue; 8 MiB
	Serial uint64 `yaml:"serial,omitempty"`
	Tag    string `yaml:"tag,omitempty"` // of a file system: its name for mount; dxpu
	MAC    string `yaml:"mac,omitempty"` // of a network card; one from the serial number
	// CID is the address of a socket device, 3 to 2^32-2. 0 is that of the back end; any other
	// one must be the same as the back end's, if that has one.
	CID uint64 `yaml:"cid,omitempty"`
	// Grace is the time for which the requests of a device that is not of a file system wait
	// for a back end that is gone, before the device is unhealthy; 30 s.
	Grace time.Duration `yaml:"grace,omitempty"`
}

// settings are a Spec with its defaults.
type settings struct {
	Spec
	kind *virtio.Kind
	mac  net.HardwareAddr
}

// Check checks the fields that need no back end.
func (spec Spec) Check() error {
	_, err := spec.complete()
	return err
}

const (
	// Addresses of a socket device (section 5.10.4): the lower ones are the hypervisor's and
	// the host's, and the highest one is any.
	minCID = 3
	maxCID = 1<<32 - 2

	maxTag = 36 // bytes of the tag in the device configuration
	// minPool is more than the largest request of a driver that is not tuned: those of
	// Linux have 1280 KiB for a disk, 1 MiB for a directory and 64 KiB for a network card,
	// and some headers. A larger request than the pool breaks the device.
	minPool = 2 << 20
)

// complete fills in the defaults and checks the fields.
func (spec Spec) complete() (s settings, err error) {
	s.Spec = spec
	s.Type = cmp.Or(s.Type, virtio.Block.Name)
	var names []string
	for _, k := range virtio.Kinds() {
		names = append(names, k.Name)
		if k.Name == s.Type {
			s.kind = k
		}
	}
	if s.kind == nil {
		return s, fmt.Errorf("type %.40q: want one of %s", s.Type, strings.Join(names, ", "))
	}
	s.Model = cmp.Or(s.Model, "virtio-"+s.Type)
	s.Queues = cmp.Or(s.Queues, s.kind.MinQueues)
	s.Pool = cmp.Or(s.Pool, 8<<20)
	s.Tag = cmp.Or(s.Tag, "dxpu")
	s.Grace = cmp.Or(s.Grace, 30*time.Second)
	switch {
	case s.Socket == "":
		return s, errors.New("the socket of the back end is missing")
	case s.Pool < minPool || s.Pool > 1<<30 || s.Pool%4096 != 0:
		return s, fmt.Errorf("pool %d: want a multiple of 4096 from 2 MiB to 1 GiB", s.Pool)
	case len(s.Tag) > maxTag:
		return s, fmt.Errorf("tag %q: want at most %d bytes", s.Tag, maxTag)
	case s.Grace < 0:
		return s, fmt.Errorf("grace %v: want a positive duration", s.Grace)
	case s.kind == virtio.Network && s.Queues != 2:
		return s, fmt.Errorf("queues %d: a network card has 2", s.Queues)
	case s.kind == virtio.Socket && s.Queues != 3:
		return s, fmt.Errorf("queues %d: a socket device has 3", s.Queues)
	case s.CID != 0 && s.kind != virtio.Socket:
		return s, fmt.Errorf("cid %d: only a socket device has one", s.CID)
	case s.CID != 0 && !validCID(s.CID):
		return s, fmt.Errorf("cid %d: want %d to %d", s.CID, minCID, uint32(maxCID))
	}
	if s.kind == virtio.Network {
		s.mac, err = spec.address()
	}
	return s, err
}

func validCID(cid uint64) bool { return cid >= minCID && cid <= maxCID }

// address returns the address of a network card.
func (spec Spec) address() (net.HardwareAddr, error) {
	if spec.MAC == "" {
		b := binary.BigEndian.AppendUint64(nil, spec.Serial)
		return append(net.HardwareAddr{0x02}, b[3:]...), nil // locally administered
	}
	mac, err := net.ParseMAC(spec.MAC)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
		return nil, fmt.Errorf("mac %.40q: want the address of one card, as 02:00:00:00:00:01", spec.MAC)
	}
	return mac, nil
}

// Offsets in the device configuration of a disk (section 5.2.4).
const (
	blkCapacity  = 0
	blkNumQueues = 34
	sectorSize   = 512
)

// deviceConfig returns the device configuration: that of the back end for a disk and a socket
// device; the other back ends leave it to the front end.
func (s *settings) deviceConfig(c *client) ([]byte, error) {
	switch s.kind {
	case virtio.FileSystem:
		config := make([]byte, s.kind.ConfigSize)
		copy(config, s.Tag)
		binary.LittleEndian.PutUint32(config[maxTag:], uint32(s.Queues-1))
		return config, nil
	case virtio.Network:
		return append([]byte(nil), s.mac...), nil
	case virtio.Socket:
		return s.socketConfig(c)
	}
	config, err := c.config(s.kind.ConfigSize)
	if err != nil {
		return nil, err
	}
	if s.kind == virtio.Block {
		binary.LittleEndian.PutUint16(config[blkNumQueues:], uint16(s.Queues))
	}
	return config, nil
}

// socketConfig returns the configuration of a socket device, which is its address. The back
// end drops packets from another one.
func (s *settings) socketConfig(c *client) ([]byte, error) {
	if s.CID != 0 && c.protocol&protocolConfig == 0 {
		return binary.LittleEndian.AppendUint64(nil, s.CID), nil
	}
	config, err := c.config(s.kind.ConfigSize)
	if err != nil {
		return nil, err
	}
	switch cid := binary.LittleEndian.Uint64(config); {
	case !validCID(cid):
		return nil, fmt.Errorf("the back end has the CID %d: want %d to %d", cid, minCID, uint32(maxCID))
	case s.CID != 0 && cid != s.CID:
		return nil, fmt.Errorf("the back end has the CID %d, and the slot %d", cid, s.CID)
	}
	return config, nil
}

// memorySize returns the memory that the pool shows: the capacity of a disk.
func (s *settings) memorySize(config []byte) uint64 {
	if s.kind != virtio.Block || len(config) < blkCapacity+8 {
		return 0
	}
	sectors := binary.LittleEndian.Uint64(config[blkCapacity:])
	return min(sectors, 1<<54) * sectorSize
}

// offered returns the features that the device offers. The address of a network card is the
// front end's.
func (s *settings) offered(features uint64) uint64 {
	if s.kind == virtio.Network {
		features |= virtio.FeatureMAC
	}
	return features
}
