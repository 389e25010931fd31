// Package vfiouser speaks the vfio-user protocol: a server that lets a VMM
// (QEMU 10.1 and later, Cloud Hypervisor, libvfio-user's clients) use a PCI
// device that lives in this process, and a client that drives a device in
// another one (libvfio-user, QEMU's x-vfio-user-server, rust-vmm).
//
// # Serving a device
//
// Describe the device in a [Config], answer its accesses in a [Handler], and
// give both to [NewServer]. [Listen] makes the socket that the VMM connects to
// and [Server.Serve] runs until its context ends:
//
//	srv, err := vfiouser.NewServer(vfiouser.Config{Regions: regions, Handler: h})
//	ln, err := vfiouser.Listen("/run/dev0.sock")
//	err = srv.Serve(ctx, ln)
//
// A handler answers each [Access] exactly once, at once or later, from any
// goroutine. The goroutine that answers writes the reply to the socket itself:
// nothing is handed over, and nothing is allocated. An access that is not
// answered within [Config.Deadline] is answered by the server with all-ones,
// as a root complex answers a completion timeout, and the late answer is
// dropped: QEMU abandons a device for good when a reply comes after its own
// timeout.
//
// # Memory of the guest
//
// [Conn.Memory] is the table of what the VMM mapped. [Memory.Read] and
// [Memory.Write] copy in place where a mapping came with a file descriptor; an
// unmap waits until copies in flight have ended. [Conn.DMARead] and
// [Conn.DMAWrite] serve every mapping and use messages where there is no
// descriptor; [Conn.SignalMSI] writes an interrupt message, which no memory
// stands behind. Messages are never sent while an access is unanswered, since
// QEMU serves none while a virtual CPU waits. Give QEMU a shared memory backend
// (memory-backend-memfd,share=on): messages are slow, and what they write may
// become visible after the completion of a later register read. A private
// memory backend (share=off) cannot be told from a shared one and corrupts data.
//
// # Interrupts
//
// [Conn.TriggerIRQ] and [Conn.SetINTx] signal the event descriptors that the VMM
// armed. [Config.HideMSIXAtRealize] keeps QEMU from virtualising MSI-X: the
// guest then programs the device's own table, interrupts are messages, and
// hot-unplug does not abort QEMU 11.
//
// # Driving a device
//
// [Dial] connects to a device server and negotiates; the methods of [Client]
// are the commands of the protocol. [Redial] keeps a client connected.
//
// Bytes of the peer are checked and bounded before they are used, on both
// sides; file descriptors that nobody asked for are closed. Guest memory is
// mapped from descriptors of the VMM: a page that a VMM takes away later
// (truncation) makes an access fail with [ErrFault] and does not end the process.
//
// The protocol is "vfio-user" in QEMU's documentation (docs/interop/vfio-user.rst);
// structures it inherits are those of Linux's include/uapi/linux/vfio.h.
package vfiouser
