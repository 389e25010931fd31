package manager

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func errForgotten() error {
	return connect.NewError(connect.CodeOutOfRange, errors.New("after_revision: these events are no longer kept; list again"))
}

// WatchEvents implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) WatchEvents(ctx context.Context, req *connect.Request[dxpuv1.WatchEventsRequest], stream *connect.ServerStream[dxpuv1.WatchEventsResponse]) error {
	at, visible, over := req.Msg.AfterRevision, scopeOf(ctx), s.m.termEnded()
	switch {
	case req.Msg.FromStart:
		at = s.m.events.start()
	case at == 0:
		_, at, _, _ = s.m.events.after(0)
	}
	if _, _, _, ok := s.m.events.after(at); !ok {
		return errForgotten()
	}
	// The first message confirms the watch and its first revision.
	if err := stream.Send(&dxpuv1.WatchEventsResponse{Revision: at}); err != nil {
		return err
	}
	alive := time.NewTicker(10 * time.Second)
	defer alive.Stop()
	for {
		events, newest, more, ok := s.m.events.after(at)
		if !ok {
			return errForgotten()
		}
		for _, e := range events {
			if e = visible.event(e); e != nil && matches(e, req.Msg.Filter) {
				if err := stream.Send(&dxpuv1.WatchEventsResponse{Event: e, Revision: e.Revision}); err != nil {
					return err
				}
			}
		}
		at = max(at, newest)
		select {
		case <-ctx.Done():
			return nil
		case <-over:
			return nil
		case <-more:
		case <-alive.C:
			if err := stream.Send(&dxpuv1.WatchEventsResponse{Revision: at}); err != nil {
				return err
			}
		}
	}
}
