package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// tracingHelp tells daemons' users how to see traces.
const tracingHelp = `

With $OTEL_EXPORTER_OTLP_ENDPOINT set, such as http://127.0.0.1:4318, the traces of
attaches go there (OTLP over HTTP; the other OTEL_ variables work too): one trace
from the call through manager, box and host to the device in the VM.`

// withTracing runs a daemon with traces exported to where the environment says;
// nothing is exported where it says nothing. What is left is sent at the end.
func withTracing(ctx context.Context, service, instance string, run func(context.Context) error) error {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return run(ctx)
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return withHint(fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: %w", err), "write it like http://127.0.0.1:4318")
	}
	who, err := resource.New(ctx, resource.WithFromEnv(), resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", service), attribute.String("service.instance.id", instance),
		attribute.String("service.version", version())))
	if err != nil {
		return fmt.Errorf("traces: %w", err)
	}
	provider := trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(who))
	otel.SetTracerProvider(provider)
	otel.SetTextMapPropagator(propagation.TraceContext{})
	err = run(ctx)
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	return errors.Join(err, provider.Shutdown(flush))
}
