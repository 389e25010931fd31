package vfiouser

import (
	"context"
	"errors"
	"testing"
)

// TestServeConn serves a connection that the caller made, with a handler that
// defines nothing.
func TestServeConn(t *testing.T) {
	cfg, _ := testConfig()
	cfg.Handler = NopHandler{}
	cfg.WriteMultiple = false
	cfg.MaxMaps = 7
	srv, err := NewServer(cfg)
	must(t, err)
	x, y := socketPair(t)
	result := make(chan error, 2)
	go func() { result <- srv.ServeConn(bg, x) }()
	c, err := NewClient(bg, y, ClientConfig{NoTwinSocket: true, NoUnmask: true})
	must(t, err)
	want := Capabilities{MaxMsgFDs: MaxFDs, MaxDataXferSize: DefaultMaxData, MaxDMAMaps: 7}
	if got := c.Capabilities(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := srv.Conn().Capabilities(); got.MaxDataXferSize != DefaultClientData || got.TwinSocket != nil {
		t.Errorf("%+v", got)
	}
	p := []byte{0}
	must(t, c.PostWrites([]MultiWrite{{Region: 0, Count: 4}, {Region: 2, Count: 8}})) // one by one
	must(t, c.RegionRead(bg, 0, 0, p))
	if p[0] != 0xff {
		t.Errorf("a handler without Access reads %#x", p[0])
	}
	must(t, c.Reset(bg))
	must(t, c.DMAMap(bg, DMAMap{Flags: 3, Size: 4096}, nil))
	must(t, c.DMAUnmap(bg, 0, 4096))
	must(t, c.DisableIRQs(bg, IRQMSI))
	if st := srv.Stats(); st.Posted != 2 || st.Reads != 1 || st.Failed != 3 {
		t.Errorf("%+v", st)
	}
	other, _ := socketPair(t)
	if err := srv.ServeConn(bg, other); err == nil {
		t.Error("two at a time")
	}
	must(t, c.Close())
	must(t, waitErr(t, result))
	must(t, srv.Close())
	other, _ = socketPair(t)
	if err := srv.ServeConn(bg, other); !errors.Is(err, ErrServerClosed) {
		t.Error(err)
	}
}

func TestRequestsWaitForRoom(t *testing.T) {
	f := serve(t)
	hold := f.dev.holding(0)
	c, _ := f.client(ClientConfig{MaxOpen: 1})
	first, second := make(chan error, 1), make(chan error, 1)
	must(t, c.StartRead(0, 0, make([]byte, 1), into(first)))
	a := <-hold
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if err := c.RegionRead(ctx, 2, 0, make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait for room whose context ends: %v", err)
	}
	go func() { second <- c.RegionRead(bg, 2, 0, make([]byte, 1)) }()
	a.Reply()
	must(t, waitErr(t, first))
	must(t, waitErr(t, second))
	must(t, c.Close())
	must(t, c.Close())
	if err := c.RegionRead(bg, 2, 0, make([]byte, 1)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := c.PostWrite(2, 0, make([]byte, 1)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// A panic that is not a memory fault is a bug and stays one.
func TestGuardPassesOtherPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"value":       func() { panic("bug") },
		"nil pointer": func() { var p *int; *p = 1 },
		"index":       func() { var s []int; s[len(s)] = 1 },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: swallowed", name)
				}
			}()
			guard(f)
		}()
	}
}

func TestAnsweringTwicePanics(t *testing.T) {
	f := serve(t)
	hold := f.dev.holding(0)
	p, _ := f.connect()
	p.send(p.message(9, 0, access(0, 0, 4)))
	a := <-hold
	a.Reply()
	p.recv()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	a.Reply()
}
