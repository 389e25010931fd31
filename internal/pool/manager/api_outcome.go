package manager

import (
	"errors"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// An error that is not the decision of a handler says whether the call had an effect:
// UNAVAILABLE is the answer of a manager that does not lead, which has done nothing, and
// of one that was deposed while it stored a change.

// unavailable returns an error for a call that has changed nothing.
func unavailable(format string, args ...any) error {
	return withEffect(errorf(connect.CodeUnavailable, format, args...), dxpuv1.CallEffect_CALL_EFFECT_NONE)
}

// unknownFate returns an error for a call whose change may have happened.
func unknownFate(code connect.Code, format string, args ...any) error {
	return withEffect(errorf(code, format, args...), dxpuv1.CallEffect_CALL_EFFECT_UNKNOWN)
}

// withEffect adds a detail to an error of the API, and returns it.
func withEffect(err error, effect dxpuv1.CallEffect) error {
	var ce *connect.Error
	if errors.As(err, &ce) {
		if d, err := connect.NewErrorDetail(&dxpuv1.CallOutcome{Effect: effect}); err == nil {
			ce.AddDetail(d)
		}
	}
	return err
}
