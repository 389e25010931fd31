package cli

import "github.com/coreos/go-systemd/v22/daemon"

// notifyReady tells a service manager that asks for it ($NOTIFY_SOCKET) that
// the daemon serves. Nobody to tell is no error.
func notifyReady() { _, _ = daemon.SdNotify(false, daemon.SdNotifyReady) }
