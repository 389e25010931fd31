package hostproxy

import (
	"context"
	"sync"

	"github.com/dxpu-project/dxpu/internal/rawio/rights"
	"github.com/dxpu-project/dxpu/internal/vm/qmp"
)

// control is the connection to QEMU's control socket. All slots share it while any
// of them needs it: QEMU serves one client at a time, so a slot that waits for its
// guest would delay the others. Between uses it is closed, so that operators can
// use the socket.
type control struct {
	trash rights.Disposer // of all connections
	turn  chan struct{}   // holds a token while a goroutine changes the fields below

	mu     sync.Mutex // guards the fields below; never held while waiting
	client *qmp.Client
	users  int
}

func newControl() *control { return &control{turn: make(chan struct{}, 1)} }

// use returns the connection and a function that returns it.
func (c *control) use(ctx context.Context, path string) (*qmp.Client, func(), error) {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	defer func() { <-c.turn }()
	if client := c.join(); client != nil {
		return client, func() { c.leave(client) }, nil
	}
	client, err := qmp.Dial(ctx, path, &c.trash)
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	c.client, c.users = client, 1
	c.mu.Unlock()
	return client, func() { c.leave(client) }, nil
}

// join returns the open connection. It leaves one that has ended to its present
// users.
func (c *control) join() *qmp.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == nil {
		return nil
	}
	select {
	case <-c.client.Done():
		c.client = nil
		return nil
	default:
	}
	c.users++
	return c.client
}

// leave returns a connection. The last user closes it.
func (c *control) leave(client *qmp.Client) {
	c.mu.Lock()
	over := c.client != client // it has ended; others may use a new one
	if !over {
		c.users--
		if over = c.users == 0; over {
			c.client = nil
		}
	}
	c.mu.Unlock()
	if over {
		_ = client.Close()
	}
}
