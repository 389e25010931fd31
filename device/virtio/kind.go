package virtio

// Kind is a type of virtio device (section 5).
type Kind struct {
	Name  string // such as "blk"
	ID    uint16 // device type
	Class uint32 // PCI class code
	// MinQueues is the number of virtqueues that every driver uses.
	MinQueues int
	// Features are those feature bits of the type that the device passes on.
	Features uint64
	// ConfigSize is the length of the device configuration in bytes.
	ConfigSize int
	// Repeatable says that a back end which returns may carry out a request again, and
	// needs no state of the time before.
	Repeatable bool
	// Stateful says that a back end keeps state of its driver that outlives a reset, such as
	// open files, or connections of the network.
	Stateful bool
	// Ordered says that the requests of a virtqueue reach the back end in the order of the
	// driver: they are packets.
	Ordered bool
	// Events is the virtqueue, behind those of the back end, whose requests the device ends
	// itself: each is a buffer for an event. 0: none.
	Events int
}

// Backed returns how many of the device's virtqueues, the first ones, the back end serves.
func (k *Kind) Backed(queues int) int {
	if k.Events != 0 {
		return min(queues, k.Events)
	}
	return queues
}

func bits(n ...uint) (set uint64) {
	for _, i := range n {
		set |= 1 << i
	}
	return set
}

// Block is a disk (section 5.2). The write cache (CONFIG_WCE) cannot be switched, because
// the device configuration is read-only.
var Block = &Kind{
	Name: "blk", ID: 2, Class: 0x010000, MinQueues: 1, ConfigSize: 60, Repeatable: true,
	Features: bits(blkSizeMax, blkSegMax, blkGeometry, blkReadOnly, blkBlockSize, blkFlush, blkTopology, blkMultiQueue, blkDiscard, blkWriteZeroes),
}

// Feature bits of Block.
const (
	blkSizeMax     = 1
	blkSegMax      = 2
	blkGeometry    = 4
	blkReadOnly    = 5
	blkBlockSize   = 6
	blkFlush       = 9
	blkTopology    = 10
	blkMultiQueue  = 12
	blkDiscard     = 13
	blkWriteZeroes = 14
)

// FileSystem is a shared directory (section 5.11). Its server knows the files that the
// guest has open, so a server that starts again is another device.
var FileSystem = &Kind{Name: "fs", ID: 26, Class: 0x018000, MinQueues: 2, ConfigSize: 40, Stateful: true}

// Network is a network card (section 5.1) without a control queue.
var Network = &Kind{
	Name: "net", ID: 1, Class: 0x020000, MinQueues: 2, ConfigSize: 6, Repeatable: true, Stateful: true, Ordered: true,
	Features: bits(0, 1, netMAC, 7, 8, 9, 10, 11, 12, 13, 14, 15), // checksums, segmentation, merged buffers
}

// FeatureMAC says that the configuration of a network card has its address.
const FeatureMAC = 1 << netMAC

const netMAC = 5

// Socket connects programs of the guest, by stream sockets of the family AF_VSOCK, with
// programs beside the back end (section 5.10). Its virtqueues are those of packets to the
// driver, of packets from the driver, and of events. The back end knows the connections: see
// [Device.ResetTransport].
var Socket = &Kind{
	Name: "vsock", ID: 19, Class: 0x078000, MinQueues: 3, ConfigSize: 8, Repeatable: true, Stateful: true, Ordered: true, Events: 2,
	Features: bits(0, 1, 2), // streams, packets of a sequence, no implied streams
}

// Kinds are the types of devices, by name.
func Kinds() []*Kind { return []*Kind{Block, FileSystem, Network, Socket} }

// Features that do not belong to a type (section 6).
const (
	// FeatureVersion1 is compliance with version 1, which driver and back end must have.
	FeatureVersion1 = 1 << 32

	featureIndirect         = 1 << 28
	featureAccessPlatform   = 1 << 33 // addresses are those of the bus
	featureOrderPlatform    = 1 << 36 // memory is ordered as on a bus
	featureNotificationData = 1 << 38 // a notification carries the available index

	transportFeatures = FeatureVersion1 | featureIndirect | featureAccessPlatform | featureOrderPlatform | featureNotificationData
)
