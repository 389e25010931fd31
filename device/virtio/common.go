package virtio

import "encoding/binary"

// Bits of device_status (section 2.1).
const (
	statusFeaturesOK = 8
	statusDriverOK   = 4
	statusNeedsReset = 0x40
)

const noVector = 0xffff

// commonConfig is the state of the common configuration structure beside that of the
// virtqueues (section 4.1.4.3).
type commonConfig struct {
	deviceSelect, driverSelect uint32
	accepted                   uint64 // driver_feature
	configVector               uint16
	status, generation         uint8
	queueSelect                uint16
}

// field is a register of the common configuration structure.
type field struct{ off, size int }

// Registers of the common configuration structure. Their order is that of the structure.
const (
	fieldDeviceSelect = iota
	fieldDeviceFeature
	fieldDriverSelect
	fieldDriverFeature
	fieldConfigVector
	fieldNumQueues
	fieldStatus
	fieldGeneration
	fieldQueueSelect
	fieldQueueSize
	fieldQueueVector
	fieldQueueEnable
	fieldQueueNotifyOff
	fieldQueueDesc
	fieldQueueDriver
	fieldQueueDevice
)

var fields = [...]field{
	{0, 4},
	{4, 4},
	{8, 4},
	{12, 4},
	{16, 2},
	{18, 2},
	{20, 1},
	{21, 1},
	{22, 2},
	{24, 2},
	{26, 2},
	{28, 2},
	{30, 2},
	{32, 8},
	{40, 8},
	{48, 8},
}

func (d *Device) readCommon(at int, b []byte) {
	var word [8]byte
	for i, f := range fields {
		if at < f.off+f.size && f.off < at+len(b) {
			binary.LittleEndian.PutUint64(word[:], d.commonField(i))
			overlap(at, b, f.off, f.size, func(from int, part []byte) { copy(part, word[from:]) })
		}
	}
}

// writeCommon merges the bytes into each register that they touch.
func (d *Device) writeCommon(at int, b []byte) {
	var word [8]byte
	for i, f := range fields {
		if at < f.off+f.size && f.off < at+len(b) {
			binary.LittleEndian.PutUint64(word[:], d.commonField(i))
			overlap(at, b, f.off, f.size, func(from int, part []byte) { copy(word[from:f.size], part) })
			d.setCommon(i, binary.LittleEndian.Uint64(word[:]))
		}
	}
}

// selected returns the virtqueue of queue_select, or nil.
func (d *Device) selected() *queue {
	if int(d.common.queueSelect) >= len(d.queues) {
		return nil
	}
	return &d.queues[d.common.queueSelect]
}

// offer returns all features of the device.
func (d *Device) offer() uint64 { return d.offered | transportFeatures }

func half(v uint64, index uint32) uint64 {
	if index > 1 {
		return 0
	}
	return v >> (32 * index) & 0xffffffff
}

func (d *Device) commonField(i int) uint64 {
	c := &d.common
	switch i {
	case fieldDeviceSelect:
		return uint64(c.deviceSelect)
	case fieldDeviceFeature:
		return half(d.offer(), c.deviceSelect)
	case fieldDriverSelect:
		return uint64(c.driverSelect)
	case fieldDriverFeature:
		return half(c.accepted, c.driverSelect)
	case fieldConfigVector:
		return uint64(c.configVector)
	case fieldNumQueues:
		return uint64(len(d.queues))
	case fieldStatus:
		return uint64(c.status)
	case fieldGeneration:
		return uint64(c.generation)
	case fieldQueueSelect:
		return uint64(c.queueSelect)
	}
	if q := d.selected(); q != nil {
		return q.field(i)
	}
	return 0
}

func (q *queue) field(i int) uint64 {
	switch i {
	case fieldQueueSize:
		return uint64(q.size)
	case fieldQueueVector:
		return uint64(q.vector)
	case fieldQueueEnable:
		if q.enabled {
			return 1
		}
	case fieldQueueNotifyOff:
		return uint64(q.index)
	case fieldQueueDesc:
		return q.desc
	case fieldQueueDriver:
		return q.avail
	case fieldQueueDevice:
		return q.used
	}
	return 0
}

func (d *Device) setCommon(i int, v uint64) {
	c := &d.common
	switch i {
	case fieldDeviceSelect:
		c.deviceSelect = uint32(v)
	case fieldDriverSelect:
		c.driverSelect = uint32(v)
	case fieldDriverFeature:
		if c.status&statusFeaturesOK == 0 && c.driverSelect <= 1 {
			shift := 32 * c.driverSelect
			c.accepted = c.accepted&^(0xffffffff<<shift) | v<<shift
		}
	case fieldConfigVector:
		c.configVector = d.vector(v)
	case fieldStatus:
		d.setStatus(uint8(v))
	case fieldQueueSelect:
		c.queueSelect = uint16(v)
	case fieldQueueVector:
		if q := d.selected(); q != nil {
			q.vector = d.vector(v)
		}
	default:
		if q := d.selected(); q != nil && !q.enabled {
			d.setQueue(q, i, v)
		}
	}
}

// vector returns a vector that the device has, or the one that says it has not.
func (d *Device) vector(v uint64) uint16 {
	if v > uint64(len(d.queues)) {
		return noVector
	}
	return uint16(v)
}

// setQueue writes a register of a virtqueue that is not enabled.
func (d *Device) setQueue(q *queue, i int, v uint64) {
	switch i {
	case fieldQueueSize:
		if v != 0 && v <= uint64(d.spec.QueueSize) && v&(v-1) == 0 {
			q.size = uint16(v)
		}
	case fieldQueueDesc:
		q.desc = v
	case fieldQueueDriver:
		q.avail = v
	case fieldQueueDevice:
		q.used = v
	case fieldQueueEnable:
		// Alignments of section 2.7.
		if v == 1 && d.common.status&statusFeaturesOK != 0 && q.desc%16 == 0 && q.avail%2 == 0 && q.used%4 == 0 && q.inRange() {
			d.enable(q)
		}
	}
}

// enable enables a virtqueue. A driver has to do so before DRIVER_OK (section 3.1.1). Other
// devices bear one that comes later, and its driver would wait for ever.
func (d *Device) enable(q *queue) {
	q.enabled = true
	if d.session.Running {
		d.session.Queues |= 1 << q.index
		q.look = true
	}
}

// setStatus takes a write of device_status. Bits are only added, except by a reset.
func (d *Device) setStatus(v uint8) {
	c := &d.common
	if v == 0 {
		d.restart()
		return
	}
	if v&statusFeaturesOK != 0 && c.status&statusFeaturesOK == 0 &&
		(c.accepted&^d.offer() != 0 || c.accepted&FeatureVersion1 == 0) {
		v &^= statusFeaturesOK // section 2.2.2: the driver reads that it is refused
	}
	if v&statusDriverOK != 0 && (c.status|v)&statusFeaturesOK == 0 {
		v &^= statusDriverOK
	}
	begins := v&statusDriverOK != 0 && c.status&statusDriverOK == 0
	c.status |= v &^ statusNeedsReset
	if begins {
		d.start()
	}
}
