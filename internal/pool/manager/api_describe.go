package manager

import (
	"context"
	"net/http"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// The descriptions of the API, for programs that are not ours: the health protocol and
// the reflection of gRPC, and OpenAPI.

// services are the names that gRPC's health protocol and reflection know.
var services = []string{dxpuv1connect.PoolServiceName, dxpuv1connect.NodeServiceName}

// describe adds the descriptions to a server.
func (m *Manager) describe(mux *http.ServeMux) {
	path, health := grpchealth.NewHandler(healthChecker{m}, connect.WithReadMaxBytes(maxUnauthenticatedBody))
	mux.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.limits.boundBody(w, r, false)
		health.ServeHTTP(w, r)
	}))
	// Reflection is a stream for as long as its caller likes, so it needs a credential,
	// although it tells nothing that is not public.
	reflector := grpcreflect.NewStaticReflector(append([]string{grpchealth.HealthV1ServiceName}, services...)...)
	for _, handler := range []func(*grpcreflect.Reflector, ...connect.HandlerOption) (string, http.Handler){grpcreflect.NewHandlerV1, grpcreflect.NewHandlerV1Alpha} {
		path, reflection := handler(reflector, connect.WithReadMaxBytes(maxUnauthenticatedBody), connect.WithInterceptors(&knownCaller{m: m}))
		mux.Handle(path, m.Protect(reflection))
	}
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(dxpuv1.OpenAPI) // the caller has gone
	})
}

// healthChecker answers like /healthz for the server, and like /readyz for a service.
type healthChecker struct{ m *Manager }

// Check implements grpchealth.Checker.
func (h healthChecker) Check(_ context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	switch req.Service {
	case "":
	case dxpuv1connect.PoolServiceName, dxpuv1connect.NodeServiceName:
		if h.m.unready() != "" {
			return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
		}
	default:
		return nil, errorf(connect.CodeNotFound, "service %q is not one of this server", truncateText(req.Service))
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}

// knownCaller lets only callers with a role open a stream, and bounds their number. It
// implements connect.Interceptor.
type knownCaller struct{ m *Manager }

// WrapUnary implements connect.Interceptor.
func (*knownCaller) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc { return next }

// WrapStreamingClient implements connect.Interceptor.
func (*knownCaller) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (k *knownCaller) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		c := callFrom(ctx)
		if auth.From(ctx).Role == dxpuv1.Role_ROLE_UNSPECIFIED {
			if err := k.m.limited(ctx, c, k.m.limits.countUnauthenticated(c, k.m.cfg.Now())); err != nil {
				return err
			}
			return errNoCredential()
		}
		leave, err := k.m.limits.openStream(c)
		if err != nil {
			return k.m.limited(ctx, c, err)
		}
		defer leave()
		return next(ctx, conn)
	}
}
