package hostproxy

import (
	"context"
	"sync"

	"github.com/dxpu-project/dxpu/internal/vm/qmp"
)

// control is the connection to QEMU's control socket, shared by all slots while
// any of them needs it: QEMU serves one client at a time, so a slot that waits
// for its guest would keep the others waiting. Between uses nobody is connected,
// and people can use the socket.
type control struct {
	turn chan struct{} // holds a token while somebody changes what follows

	mu     sync.Mutex // guards what follows; never held while waiting
	client *qmp.Client
	users  int
}

func newControl() *control { return &control{turn: make(chan struct{}, 1)} }

// use returns the connection and what gives it back.
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
	client, err := qmp.Dial(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	c.client, c.users = client, 1
	c.mu.Unlock()
	return client, func() { c.leave(client) }, nil
}

// join takes part in a connection that is open and alive. One that has ended is
// left to those who use it still.
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

// leave gives a connection back. The last one closes it.
func (c *control) leave(client *qmp.Client) {
	c.mu.Lock()
	over := c.client != client // it has ended; others may use another one
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
