package fleet

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/dxpu-project/dxpu/internal/bench/process"
)

// child is the manager's process.
type child struct {
	*process.Process
	url   string
	token string
}

func startChild(ctx context.Context, spec *Spec) (*child, error) {
	p, err := process.Start(ctx, spec.Child)
	if err != nil {
		return nil, fmt.Errorf("bench: start the manager: %w", err)
	}
	c := &child{Process: p, token: rand.Text()}
	r, err := c.call(request{Start: &start{Token: c.token, Dir: spec.Dir, Heartbeat: spec.Heartbeat}})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bench: start the manager: %w", err), c.Stop())
	}
	c.url = r.URL
	return c, nil
}

func (c *child) call(q request) (reply, error) {
	var r reply
	if err := c.Requests.Encode(q); err != nil {
		return r, err
	}
	if err := c.Replies.Decode(&r); err != nil {
		return r, err
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}

func (c *child) usage(collect bool) (Usage, error) {
	r, err := c.call(request{Usage: true, Collect: collect})
	if err != nil || r.Usage == nil {
		return Usage{}, err
	}
	return *r.Usage, nil
}
