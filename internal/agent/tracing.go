package agent

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// traceStep records the time since the previous step as a span, in the trace of the
// call that asked for the lease. Without a trace it costs nothing. Only attach and
// detach have steps, never the data path.
func traceStep(parent string, b *BindingStatus, step *dxpuv1.Step) {
	if parent == "" {
		return
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": parent})
	end := step.Time.AsTime()
	_, span := otel.Tracer("github.com/dxpu-project/dxpu/internal/agent").Start(ctx, step.Name,
		trace.WithTimestamp(end.Add(-step.Duration.AsDuration())),
		trace.WithAttributes(attribute.String("dxpu.binding", b.ID), attribute.String("dxpu.detail", b.Detail)))
	span.End(trace.WithTimestamp(end))
}
