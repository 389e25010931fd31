package manager

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// errorf returns an error of the API with a code.
func errorf(code connect.Code, format string, args ...any) error {
	return connect.NewError(code, fmt.Errorf(format, args...))
}

func invalid(format string, args ...any) error {
	return errorf(connect.CodeInvalidArgument, format, args...)
}

func notFound(kind, id string) error {
	return errorf(connect.CodeNotFound, "%s %q does not exist", kind, id)
}

func conflict(kind, id string, have, want uint64) error {
	return errorf(connect.CodeAborted, "resource_version: %s %s has version %d, not %d; read it again", kind, id, have, want)
}

// apiError passes errors of the API on, and turns all others, which come from
// the store, into UNAVAILABLE.
func apiError(err error) error {
	var ce *connect.Error
	if err == nil || errors.As(err, &ce) {
		return err
	}
	return connect.NewError(connect.CodeUnavailable, err)
}

// updateResponse makes a transaction for a call and returns the response, which
// fn fills in.
func updateResponse[T any](ctx context.Context, m *Manager, fn func(t *tx, res *T) error) (*connect.Response[T], error) {
	res := new(T)
	if err := m.update(ctx, func(t *tx) error { return fn(t, res) }); err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(res), nil
}

// viewResponse is updateResponse for a call that changes nothing.
func viewResponse[T any](m *Manager, fn func(t *tx, res *T) error) (*connect.Response[T], error) {
	res := new(T)
	err := m.view(func(t *tx) error { return fn(t, res) })
	return connect.NewResponse(res), err
}

func kindWord(k dxpuv1.NodeKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "NODE_KIND_"))
}

func healthWord(h dxpuv1.Health) string {
	return strings.ToLower(strings.TrimPrefix(h.String(), "HEALTH_"))
}

func gpuID(box string, slot uint32) string { return placement.Ref{Box: box, Slot: slot}.String() }

func gpuEvent(n *nodeRecord, slot uint32, typ dxpuv1.EventType) *dxpuv1.Event {
	e := nodeEvent(n, typ)
	e.GpuId = gpuID(n.ID, slot)
	return e
}

func nodeEvent(n *nodeRecord, typ dxpuv1.EventType) *dxpuv1.Event {
	e := &dxpuv1.Event{Type: typ}
	if n.Kind == dxpuv1.NodeKind_NODE_KIND_BOX {
		e.BoxId = n.ID
	} else {
		e.HostId = n.ID
	}
	return e
}
