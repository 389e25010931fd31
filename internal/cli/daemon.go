//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// tracingHelp is the part of the daemons' help about traces.
const tracingHelp = `

With $OTEL_EXPORTER_OTLP_ENDPOINT, such as http://127.0.0.1:4318, the daemon exports
traces of attaches (OTLP over HTTP; the other OTEL_ variables apply, too). One trace
covers the call, the manager, the box, the host and the device in the VM.`

// withTracing runs a daemon and exports its traces to the collector that the
// environment names, if any. Buffered spans are sent when run returns.
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

// notifyReady reports to the service manager ($NOTIFY_SOCKET) that the daemon serves.
// It does nothing without one.
func notifyReady() { _, _ = daemon.SdNotify(false, daemon.SdNotifyReady) }
