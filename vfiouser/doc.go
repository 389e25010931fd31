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
// goroutine. The goroutine that answers writes the reply to the socket itself,
// without a hand-over or an allocation. The server answers an access that the
// handler has not answered within [Config.Deadline] with all ones, as a root
// complex does after a completion timeout, and drops the late answer: QEMU
// abandons a device for good when a reply arrives after its own timeout.
//
// # Memory of the guest
//
// [Conn.Memory] is the table of what the VMM mapped. [Memory.Read] and
// [Memory.Write] copy in place where a mapping came with a file descriptor; an
// unmap waits until copies in flight have ended. [Conn.DMARead] and
// [Conn.DMAWrite] serve every mapping and use messages where there is no
// descriptor; [Conn.SignalMSI] writes an interrupt message, whose address is no
// memory. The server sends no message while an access is unanswered, since
// QEMU serves none while a virtual CPU waits. Give QEMU a shared memory backend
// (memory-backend-memfd,share=on): messages are slow, and their writes may
// become visible after the completion of a later register read. A private
// memory backend (share=off) comes with a descriptor too, behind which the guest and
// the device do not see each other's writes: the server refuses it if /proc shows
// it the VMM's mappings.
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
// are the commands of the protocol. [Client.Done] is closed when the server has gone.
//
// Both sides check and bound the peer's bytes before they use them, and close
// unexpected file descriptors. They map guest memory from descriptors of the VMM:
// an access to a page that the VMM removes later (truncation) fails with
// [ErrFault] and does not end the process.
//
// The protocol is "vfio-user" in QEMU's documentation (docs/interop/vfio-user.rst);
// structures it inherits are those of Linux's include/uapi/linux/vfio.h.
package vfiouser
