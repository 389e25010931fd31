package qmp

import (
	"context"
	"errors"
)

// Status is the run state of the machine, such as "running", "paused" or "shutdown".
func (c *Client) Status(ctx context.Context) (string, error) {
	var s struct {
		Status string `json:"status"`
	}
	err := c.Execute(ctx, "query-status", nil, &s)
	return s.Status, err
}

// SystemReset resets the machine as its reset button would.
func (c *Client) SystemReset(ctx context.Context) error {
	return c.Execute(ctx, "system_reset", nil, nil)
}

// Quit ends QEMU and waits until it has closed the connection.
func (c *Client) Quit(ctx context.Context) error {
	// QEMU may be gone before its reply is.
	if err := c.Execute(ctx, "quit", nil, nil); err != nil && !errors.Is(err, ErrClosed) {
		return err
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
