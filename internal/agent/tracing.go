package agent

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// traceStep makes a span of the time from the step before, in the trace of the
// call that asked for the lease. It costs nothing where none is traced: attach
// and detach only, never the data path.
func traceStep(parent string, b *BindingStatus, step *dxpuv1.Step) {
	if parent == "" {
		return
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": parent})
	end := step.Time.AsTime()
	_, span := otel.Tracer("github.com/dxpu-project/dxpu/node").Start(ctx, step.Name,
		trace.WithTimestamp(end.Add(-step.Duration.AsDuration())),
		trace.WithAttributes(attribute.String("dxpu.binding", b.ID), attribute.String("dxpu.detail", b.Detail)))
	span.End(trace.WithTimestamp(end))
}
