package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"

	"google.golang.org/protobuf/encoding/protojson"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/bench/process"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
)

// Serve runs in the child process: it reads requests, a JSON value each, and writes
// a reply to each, until in ends. The first request names what to start.
func Serve(in io.Reader, out io.Writer) error {
	requests, replies := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)
	var first request
	if err := requests.Decode(&first); err != nil {
		return fmt.Errorf("bench: the first request: %w", err)
	}
	if first.Start == nil {
		return errors.New("bench: the first request must name what to start")
	}
	s, hello, err := start(*first.Start)
	if err != nil {
		return errors.Join(err, replies.Encode(reply{Error: err.Error()}))
	}
	defer s.close()
	if err := replies.Encode(hello); err != nil {
		return err
	}
	for {
		var q request
		switch err := requests.Decode(&q); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe):
			return nil
		case err != nil:
			return err
		}
		if err := replies.Encode(s.answer(q)); err != nil {
			return err
		}
	}
}

// request is a request to the child. One field is set, with its arguments.
type request struct {
	Start   *memberSpec       `json:",omitempty"`
	Desired []json.RawMessage `json:",omitempty"` // apply these, one for each part
	Await   int               `json:",omitempty"` // devices
	TLPs    bool              `json:",omitempty"`
	Used    bool              `json:",omitempty"` // nanoseconds of the GPU that the slice in Slot has used
	Slot    int               `json:",omitempty"` // of TLPs and Used
	Memory  bool              `json:",omitempty"`
}

type reply struct {
	Error     string            `json:",omitempty"`
	Addresses []string          `json:",omitempty"` // by path, of a proxy
	MTU       int               `json:",omitempty"`
	Echo      map[string]string `json:",omitempty"` // addresses of the far ends of ping-pongs
	Value     uint64            `json:",omitempty"`
}

type served struct {
	member  *member
	echo    *echo
	servers *servers
	stop    func()
}

func start(spec memberSpec) (*served, reply, error) {
	s := &served{stop: func() {}}
	if spec.Profile != "" {
		f, err := os.Create(spec.Profile)
		if err != nil {
			return nil, reply{}, err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return nil, reply{}, errors.Join(err, f.Close())
		}
		s.stop = func() {
			pprof.StopCPUProfile()
			_ = f.Close()
		}
	}
	var err error
	if spec.Kind == kindEcho {
		if s.echo, err = newEcho(spec.SocketDirs[0], spec.Polling); err != nil {
			return nil, reply{}, err
		}
		return s, reply{Echo: s.echo.addresses}, nil
	}
	if spec.Kind == kindBusy {
		profile := s.stop
		stop := busyLoop()
		s.stop = func() {
			stop()
			profile()
		}
		return s, reply{}, nil
	}
	if spec.Kind == kindServers {
		if s.servers, err = newServers(spec.SocketDirs[0]); err != nil {
			return nil, reply{}, err
		}
		return s, reply{}, nil
	}
	if s.member, err = newMember(spec, vmFronts(spec)); err != nil {
		return nil, reply{}, err
	}
	return s, s.member.hello(), nil
}

func (m *member) hello() reply {
	r := reply{MTU: m.fabric.MTUs()[0]}
	for _, a := range m.fabric.Addrs() {
		r.Addresses = append(r.Addresses, a.String())
	}
	return r
}

func (s *served) close() {
	if s.member != nil {
		_ = s.member.Close()
	}
	if s.echo != nil {
		s.echo.close()
	}
	if s.servers != nil {
		_ = s.servers.Close()
	}
	s.stop()
}

func (s *served) answer(q request) reply {
	var desired []*dxpuv1.DesiredState
	for _, raw := range q.Desired {
		d := new(dxpuv1.DesiredState)
		if err := protojson.Unmarshal(raw, d); err != nil {
			return reply{Error: err.Error()}
		}
		desired = append(desired, d)
	}
	switch {
	case desired != nil:
		s.member.apply(desired)
	case q.Await > 0:
		if err := s.member.await(q.Await); err != nil {
			return reply{Error: err.Error()}
		}
	case q.TLPs:
		return reply{Value: s.member.tlps(q.Slot)}
	case q.Used:
		return reply{Value: uint64(s.member.parts[0].(*boxproxy.Box).SliceUsage(q.Slot).Service)}
	case q.Memory:
		return reply{Value: processMemory()}
	}
	return reply{}
}

// processMemory returns the memory of the process after garbage collection: heap and
// stacks in bytes.
func processMemory() uint64 {
	var m runtime.MemStats
	for range 2 { // a sync.Pool releases its objects over two collections
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// child is a process that runs Serve, or goroutines of this process that do.
type child struct {
	hello    reply
	requests *json.Encoder
	replies  *json.Decoder
	stop     func() error
}

// spawn starts a child.
func (o *Options) spawn(ctx context.Context, spec memberSpec) (*child, error) {
	if o.Profile != "" && len(o.Child) > 0 {
		spec.Profile = o.Profile + "." + spec.Kind + ".pprof"
	}
	c := &child{}
	var err error
	if len(o.Child) > 0 {
		var p *process.Process
		if p, err = process.Start(ctx, o.Child); err == nil {
			c.requests, c.replies, c.stop = p.Requests, p.Replies, p.Stop
		}
	} else {
		c.goroutine()
	}
	if err != nil {
		return nil, fmt.Errorf("bench: start %s: %w", spec.Kind, err)
	}
	if c.hello, err = c.call(request{Start: &spec}); err != nil {
		return nil, errors.Join(fmt.Errorf("bench: start %s: %w", spec.Kind, err), c.stop())
	}
	return c, nil
}

func (c *child) goroutine() {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := Serve(inR, outW)
		_ = inR.Close()
		_ = outW.Close()
		done <- err
	}()
	c.requests, c.replies = json.NewEncoder(inW), json.NewDecoder(outR)
	c.stop = func() error {
		_ = inW.Close()
		return <-done
	}
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

// vmFronts returns the front ends of a host with vfio-user sockets.
func vmFronts(spec memberSpec) []hostproxy.Front {
	var fronts []hostproxy.Front
	for _, dir := range spec.SocketDirs {
		fronts = append(fronts, vmFront(dir, spec.Polling))
	}
	return fronts
}
