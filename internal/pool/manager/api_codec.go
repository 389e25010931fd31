package manager

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// strictJSON decodes requests of people and scripts. It refuses unknown fields
// instead of ignoring them. Programs that must work with managers of other
// versions send protobuf.
type strictJSON struct{ name string }

// Name implements connect.Codec.
func (c strictJSON) Name() string { return c.name }

// strictCodecs replaces connect's own JSON codec.
func strictCodecs() connect.HandlerOption {
	return connect.WithHandlerOptions(connect.WithCodec(strictJSON{"json"}), connect.WithCodec(strictJSON{"json; charset=utf-8"}))
}

var errNoMessage = errors.New("manager: not a message of the API")

// Marshal implements connect.Codec.
func (strictJSON) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, errNoMessage
	}
	return protojson.Marshal(m)
}

// Unmarshal implements connect.Codec.
func (strictJSON) Unmarshal(raw []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return errNoMessage
	}
	if len(raw) == 0 {
		return errors.New(`no JSON: send {} for a request without fields`)
	}
	err := protojson.UnmarshalOptions{RecursionLimit: maxJSONDepth}.Unmarshal(raw, m)
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "unknown field"):
		return fmt.Errorf("%w; the fields are those of %s in api/dxpu/v1", err, m.ProtoReflect().Descriptor().Name())
	case strings.Contains(err.Error(), "google.protobuf.Duration"):
		return fmt.Errorf(`%w; write a duration like "90s"`, err)
	}
	return err
}

// maxJSONDepth bounds the nesting of a request; the API needs eight levels.
const maxJSONDepth = 32
