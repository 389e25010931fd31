// Package qmp is a client of QMP, the JSON protocol that controls QEMU:
// commands, replies and events on one UNIX socket.
//
// A [Client] is safe for use by several goroutines. A caller makes a
// [Subscription] before a command, so that it loses no event that the command causes. The
// client does not trust the other side: it bounds the length of messages, and a message that
// is not QMP ends the connection.
//
// The protocol: https://www.qemu.org/docs/master/interop/qmp-spec.html
package qmp
