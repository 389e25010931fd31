package etcdstore

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo returns a logger for etcd that passes on messages from a level up.
func zapTo(log *slog.Logger, level zapcore.LevelEnabler) *zap.Logger {
	// etcd ends the process after a fatal message, without a word about the remedy.
	return zap.New(&slogCore{log: log, LevelEnabler: level}, zap.WithFatalHook(zapcore.WriteThenPanic))
}

// slogCore is a zapcore.Core that writes to slog.
type slogCore struct {
	zapcore.LevelEnabler
	log    *slog.Logger
	fields []zapcore.Field
}

// With implements zapcore.Core.
func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{c.LevelEnabler, c.log, append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

// Check implements zapcore.Core.
func (c *slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements zapcore.Core.
func (c *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		f.AddTo(enc)
	}
	level := slog.LevelWarn
	if e.Level > zapcore.WarnLevel {
		level = slog.LevelError
	}
	args, message := []any{"from", "etcd"}, e.Message
	if message == failedCall {
		message = "etcd does not answer"
		enc.Fields = map[string]any{"cause": callCause(enc.Fields["error"])}
	}
	for k, v := range enc.Fields {
		args = append(args, k, v)
	}
	c.log.Log(context.Background(), level, message, args...)
	return nil
}

// failedCall is what etcd's client says when a call failed, with addresses of its memory.
const failedCall = "retrying of unary invoker failed"

// callCause returns the innermost description in the error of a call.
func callCause(err any) string {
	text := fmt.Sprint(err)
	if at := strings.LastIndex(text, "desc = "); at >= 0 {
		text = strings.Trim(text[at+len("desc = "):], `\"`)
	}
	return strings.TrimPrefix(text, "transport: ")
}

// Sync implements zapcore.Core.
func (*slogCore) Sync() error { return nil }
