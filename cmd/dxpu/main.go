// Command dxpu is the manager, the proxies and the tools of a GPU pool in one binary.
package main

import (
	"os"

	"github.com/dxpu-project/dxpu/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
