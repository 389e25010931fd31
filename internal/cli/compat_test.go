package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// previousVersion builds the program of the previous minor version, once.
var previousVersion = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("../../scripts/build-previous.sh").Output()
	return strings.TrimSpace(string(out)), err
})

// A manager, a box or a host of the previous minor version works with new ones: every
// combination attaches, moves data and detaches.
func TestPreviousVersion(t *testing.T) {
	old, err := previousVersion()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 3 {
		t.Skipf("%s", exit.Stderr)
	}
	if err != nil {
		t.Fatalf("build the previous version: %v", err)
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "previous"),
		Setup: func(env *testscript.Env) error {
			env.Setenv("DXPU_JOIN_TOKEN", "token-for-tests")
			// "old" is the previous program.
			bin := filepath.Join(env.WorkDir, "bin")
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			return errors.Join(os.Mkdir(bin, 0o755), os.Symlink(old, filepath.Join(bin, "old")))
		},
		Cmds: scriptCommands(),
	})
}
