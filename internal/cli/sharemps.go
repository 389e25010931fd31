//go:build linux

package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/mps"
	"github.com/dxpu-project/dxpu/internal/sharing/nvidia"
)

// mpsDir is the folder of the services below the agent's. No share has such a name.
const mpsDir = ".mps"

// mps returns what makes the Multi-Process Service of a GPU, and the user whose programs it
// serves. It returns nil for another policy.
func (o *shareServe) mps(list []broker.GPU, log *slog.Logger) (func(int, func(mps.Notice)) (agent.MPS, error), int, error) {
	if o.policy != "mps" {
		if o.mpsUser != "" {
			return nil, 0, usagef("--mps-user is for --policy mps")
		}
		return nil, 0, nil
	}
	uid, err := userID(o.mpsUser)
	if err != nil {
		return nil, 0, err
	}
	const control = "nvidia-cuda-mps-control"
	if _, err := exec.LookPath(control); err != nil {
		return nil, 0, withHint(fmt.Errorf("--policy mps: %s is not there", control),
			"install NVIDIA's driver with its compute utilities, and have the program in $PATH; or share by --policy gemini, which needs no MPS")
	}
	for i := range list {
		if agent.UUIDText(list[i].UUID) == "" {
			return nil, 0, withHint(fmt.Errorf("--policy mps: the UUID of GPU %s is not known, by which MPS finds it", list[i].Name),
				"name a GPU by its PCI address; NVIDIA's driver must be loaded")
		}
	}
	dir, err := filepath.Abs(o.dir) // the daemon does not work in this folder
	return func(i int, notify func(mps.Notice)) (agent.MPS, error) {
		return nvidia.NewMPS(nvidia.MPSConfig{
			UUID: agent.UUIDText(list[i].UUID), Dir: filepath.Join(dir, mpsDir, strings.ReplaceAll(list[i].Name, ":", "-")),
			UID: uint32(uid), Notify: notify, Logger: log,
		})
	}, uid, err
}

// userID returns the number of a user, this process's for "".
func userID(name string) (int, error) {
	if name == "" {
		return os.Getuid(), nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, usagef("--mps-user: %w", err)
	}
	n, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return 0, usagef("--mps-user: %w", errors.New("no user number"))
	}
	return int(n), nil
}
