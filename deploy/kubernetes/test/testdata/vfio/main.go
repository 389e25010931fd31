// Command vfio prints what a container gets of the device in a slot of this machine, a VM, by the
// plugin's own code: the device files and the variables.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/devicedata"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/plugin"
)

func main() {
	if err := run(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run() error {
	slot, err := strconv.ParseUint(os.Args[1], 10, 32)
	if err != nil {
		return err
	}
	v := &plugin.VFIO{Sysfs: "/sys", Dev: "/dev"}
	edits, _, err := v.Open(context.Background(), 0, []devicedata.Data{{GPU: "gpu", Slot: uint32(slot)}}, func(string) error { return nil })
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(edits)
}
