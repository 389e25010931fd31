//go:build !unix

package dirlock

import "os"

// tryLock does not lock: daemons do not run on other systems.
func tryLock(path string) (*os.File, error) { return os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) }
