//go:build linux

package cli

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/dxpu-project/dxpu/internal/sharing/nvidiatest"
)

// fakeCUDA is a program with a context of CUDA. "client FILE" connects to MPS, writes the
// limits that the server and the environment give, and ends by SIGTERM. "script DIR ORDER"
// gives the daemon of these pipes an order. "share FILE" is in the share of $DXPU_SHARE.
func fakeCUDA(args []string) int {
	switch {
	case len(args) == 3 && args[0] == "script":
		return failed(nvidiatest.Script(args[1], args[2]))
	case len(args) == 2 && args[0] == "share":
		return failed(fakeShared(args[1]))
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	c, limits, err := nvidiatest.Connect(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), os.Getpid())
	if err != nil {
		return failed(err)
	}
	file := args[1]
	line := fmt.Sprintf("%s, %s\n", limits, os.Getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"))
	if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
		return failed(err)
	}
	<-end
	c.Close()
	return failed(os.WriteFile(filepath.Clean(file), []byte("ended\n"), 0o600))
}

func failed(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
