package etcdstore

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// An etcd that does not answer is in the log with the cause, and without what etcd's
// client says about itself.
func TestFailedCallInLog(t *testing.T) {
	var out bytes.Buffer
	log := zapTo(slog.New(slog.NewTextHandler(&out, nil)), zap.WarnLevel)
	log.Warn(failedCall, zap.String("target", "etcd-endpoints://0x6de6dc1ca00/127.0.0.1:1"), zap.Uint("attempt", 0),
		zap.Error(errors.New(`rpc error: code = DeadlineExceeded desc = latest balancer error: connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`)))
	got := out.String()
	if !strings.Contains(got, "etcd does not answer") || !strings.Contains(got, "127.0.0.1:1: connect: connection refused") ||
		strings.Contains(got, "0x") || strings.Contains(got, "rpc") {
		t.Error(got)
	}
}
