package fleet

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// child is the manager's process.
type child struct {
	url      string
	token    string
	requests *json.Encoder
	replies  *json.Decoder
	stop     func() error
}

func startChild(ctx context.Context, spec *Spec) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Args = spec.Child
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: start the manager: %w", err)
	}
	c := &child{
		requests: json.NewEncoder(in), replies: json.NewDecoder(bufio.NewReader(out)), token: rand.Text(),
		stop: func() error { return errors.Join(in.Close(), cmd.Wait()) },
	}
	r, err := c.call(request{Start: &start{Token: c.token, Dir: spec.Dir, Heartbeat: spec.Heartbeat}})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bench: start the manager: %w", err), c.stop())
	}
	c.url = r.URL
	return c, nil
}

func (c *child) call(q request) (reply, error) {
	var r reply
	if err := c.requests.Encode(q); err != nil {
		return r, err
	}
	if err := c.replies.Decode(&r); err != nil {
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
