package vhostusertest

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// Installed returns the directory of the servers of scripts/install-vhost-user.sh. It skips the
// test where they are not installed. The test's package is two folders below the repository.
func Installed(t testing.TB) string {
	t.Helper()
	const notInstalled = 3
	out, err := exec.Command("../../scripts/install-vhost-user.sh", "--check").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == notInstalled {
		t.Skipf("%s", exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
