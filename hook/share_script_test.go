//go:build linux

package hook

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The script for real GPUs calls the commands of this version: its agent and its way to
// run a program in a share, with the fake driver.
func TestScriptForRealGPUs(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	dxpu, x := buildDXPU(t), newSharing(t, 0)
	dir := needBuilds(t).dir
	const script = `
import subprocess, sys
import share
dxpu, program = sys.argv[1:]
args = share.parser().parse_args(["accuracy", "--dxpu", dxpu, "--gpu", "test,memory=1GiB"])
for policy in (None, "timeslice", "orion"):
    agent = share.Agent(args, policy)
    try:
        for kind in ("online", "offline"):
            limit = share.parse_bytes("8MiB")
            run = subprocess.run([*agent.command(limit, "50%", kind), program], input="init\ninfo\n", capture_output=True, text=True, check=True)
            print(policy, kind, run.stdout.splitlines()[1])
    finally:
        agent.close()
`
	cmd := exec.Command(python, "-c", script, dxpu, filepath.Join(dir, "share"))
	cmd.Dir = "realgpu"
	cmd.Env = append(os.Environ(), "FAKE_GPU="+x.gpu, "DXPU_REAL_LIBCUDA="+filepath.Join(dir, "gpu", Library), "PYTHONDONTWRITEBYTECODE=1")
	out := runCommand(t, cmd)
	if n := strings.Count(out, " 0 8388608 8388608\n"); n != 6 {
		t.Errorf("%d of 6 runs have their share:\n%s", n, out)
	}
}
