package manager

import (
	"context"

	"connectrpc.com/connect"
	"connectrpc.com/otelconnect"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// One trace covers an attach from the call to the device in the VM. Its root is the
// span of CreateLease. The trace context is stored with the lease and its bindings and
// goes to both nodes with the desired state. The manager, the host and the box each
// add a span per step, so a trace survives a restart of any of them. Without an
// exporter there are no spans.

// tracer is looked up at each use, because the program sets the provider up after init.
func tracer() trace.Tracer { return otel.Tracer("github.com/dxpu-project/dxpu/manager") }

// tracing makes a span of each call, which continues the caller's trace.
func tracing() connect.Interceptor {
	i, err := otelconnect.NewInterceptor(otelconnect.WithoutMetrics(), otelconnect.WithTrustRemote())
	if err != nil {
		// Only the registration of metrics can fail, and there are none.
		return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc { return next })
	}
	return i
}

// traceparent returns the W3C trace context of a call, "" if the call is not traced.
func traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// traceEvent makes a span of the time that a binding spent in its previous state.
func traceEvent(e *dxpuv1.Event, b *bindingRecord) {
	if e.Type != dxpuv1.EventType_EVENT_TYPE_BINDING_STATE || b == nil || b.Trace == "" {
		return
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": b.Trace})
	end := e.Time.AsTime()
	_, span := tracer().Start(ctx, "binding: until "+stateWord(e.BindingState),
		trace.WithTimestamp(end.Add(-e.Duration.AsDuration())),
		trace.WithAttributes(
			attribute.String("dxpu.lease", e.LeaseId), attribute.String("dxpu.binding", e.BindingId),
			attribute.String("dxpu.gpu", e.GpuId), attribute.String("dxpu.host", e.HostId),
		))
	span.End(trace.WithTimestamp(end))
}
