package main

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// move asks the kernel to move memory of a GPU to the other one of two nodes, as it does by
// itself to bring pages near to the processor that uses them. Without an IOMMU that must fail.
func move(ctx context.Context, args []string) (err error) {
	g, err := open(ctx, args[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	memory, err := g.bus.AllocDMA(4096)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, memory.Free()) }()
	var moved int32
	page := unsafe.SliceData(memory.Bytes())
	from, err := movePage(page, nil)
	if err != nil {
		return err
	}
	for range 100 {
		to := 1 - from
		if _, err := movePage(page, &to); err != nil {
			return err
		}
		at, err := movePage(page, nil)
		if err != nil {
			return err
		}
		if at != from {
			moved++
			from = at
		}
	}
	fmt.Printf("%v, moved %d times\n", g.bus.Mode(), moved)
	return nil
}

// movePage asks move_pages(2) for a page's node, or to move it. It returns the status.
func movePage(page *byte, node *int32) (status int32, err error) {
	_, _, errno := unix.Syscall6(unix.SYS_MOVE_PAGES, 0, 1, uintptr(unsafe.Pointer(&page)),
		uintptr(unsafe.Pointer(node)), uintptr(unsafe.Pointer(&status)), unix.MPOL_MF_MOVE)
	if errno != 0 {
		return 0, fmt.Errorf("move_pages: %w", errno)
	}
	return status, nil
}
