package cli

import "github.com/coreos/go-systemd/v22/daemon"

// notifyReady reports to the service manager ($NOTIFY_SOCKET) that the daemon serves.
// It does nothing without one.
func notifyReady() { _, _ = daemon.SdNotify(false, daemon.SdNotifyReady) }
