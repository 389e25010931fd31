package kubetest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// StartShare starts the agent of a machine that offers GPUs of its own to a pool: the host with a
// name, and the box with its GPUs, of 8 GiB each. They are files that look like NVIDIA's driver.
func (p *Pool) StartShare(host string, gpus int) error {
	at, root := p.ShareDir(host), filepath.Join(p.Dir, host+"-root")
	args := []string{
		"share", "serve", "--manager", p.URL, "--host", host, "--dir", at, "--state", at + ".json",
		"--state-dir", at + "-nodes", "--kernel-log", "none", "--root", root,
	}
	for i := range gpus {
		address := fmt.Sprintf("0000:%02x:00.0", 0x3b+i)
		for file, text := range map[string]string{
			"sys/bus/pci/devices/" + address + "/vendor":          "0x10de\n",
			"sys/bus/pci/devices/" + address + "/class":           "0x030200\n",
			"proc/driver/nvidia/gpus/" + address + "/information": "Model: \t\t Tesla V100\nGPU UUID: \t " + ShareUUID(i) + "\n",
		} {
			file = filepath.Join(root, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
				return err
			}
		}
		args = append(args, "--gpu", address+",memory=8GiB")
	}
	token := filepath.Join(p.Dir, "p", "join-token") // of "dxpu dev"
	if _, err := os.Stat(token); err == nil {
		args = append(args, "--join-token-file", token)
	}
	return p.start(host, args...)
}

// ShareUUID returns the UUID of a GPU of StartShare.
func ShareUUID(i int) string { return fmt.Sprintf("GPU-01234567-89ab-cdef-0123-%012x", i) }

// ShareDir returns the directory of the agent of a host.
func (p *Pool) ShareDir(host string) string { return filepath.Join(p.Dir, host) }
