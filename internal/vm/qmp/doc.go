// Package qmp is a client of QMP, the JSON protocol by which QEMU is controlled:
// commands, replies and events on one UNIX socket.
//
// A [Client] is safe for use by several goroutines. Events are never lost between a
// command and the wait for what it causes: a [Subscription] is taken before the command.
// The other side is not trusted: messages are bounded in length, and a message that is not
// QMP ends the connection.
//
// The protocol: https://www.qemu.org/docs/master/interop/qmp-spec.html
package qmp
