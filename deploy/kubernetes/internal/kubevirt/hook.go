package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// The services of a hook sidecar, and the names of the points at which KubeVirt's launcher calls it.
const (
	infoService      = "kubevirt.hooks.info.Info"
	callbacksService = "kubevirt.hooks.v1alpha3.Callbacks"
	callbacksVersion = "v1alpha3"
	pointDefine      = "OnDefineDomain"
	pointShutdown    = "Shutdown"
)

const (
	// maxStreams is the number of calls at a time. The launcher makes one.
	maxStreams = 4
	// stopTimeout is less than the time that a pod has to end.
	stopTimeout = 5 * time.Second
)

// Hook is the server of a hook sidecar. KubeVirt's launcher calls it when it defines the domain of a VM.
type Hook struct {
	// Define returns the domain for a VirtualMachineInstance in JSON, from that of KubeVirt.
	Define func(vmi, domain string) (string, error)

	shutdown chan struct{}
	once     sync.Once
}

// Serve serves the launcher until it says that the VM has ended, or ctx ends.
func (h *Hook) Serve(ctx context.Context, l net.Listener) error {
	h.shutdown = make(chan struct{})
	s := grpc.NewServer(grpc.MaxConcurrentStreams(maxStreams))
	s.RegisterService(service(infoService, map[string]call{"Info": h.info}), h)
	s.RegisterService(service(callbacksService, map[string]call{pointDefine: h.define, pointShutdown: h.end}), h)
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	var err error
	select {
	case err = <-failed:
		return err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-h.shutdown:
	}
	// The answer to the launcher is sent. A connection that says nothing is not waited for.
	end := time.AfterFunc(stopTimeout, s.Stop)
	defer end.Stop()
	s.GracefulStop()
	return errors.Join(err, <-failed)
}

// call answers a request. Requests and answers are empty messages to the library: their fields, which are few,
// are the unknown ones.
type call func(request []byte) (answer []byte, err error)

// service returns the description of a service.
func service(name string, calls map[string]call) *grpc.ServiceDesc {
	d := &grpc.ServiceDesc{ServiceName: name, HandlerType: (*any)(nil)}
	for method, answer := range calls {
		d.Methods = append(d.Methods, grpc.MethodDesc{MethodName: method, Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var in, out emptypb.Empty
			if err := decode(&in); err != nil {
				return nil, err
			}
			raw, err := answer(in.ProtoReflect().GetUnknown())
			if err != nil {
				return nil, err
			}
			out.ProtoReflect().SetUnknown(raw)
			return &out, nil
		}})
	}
	return d
}

// The numbers of the fields.
const (
	fieldName     protowire.Number = 1 // of the hook, and of a point
	fieldPoints   protowire.Number = 3
	fieldVersions protowire.Number = 4
	fieldDomain   protowire.Number = 1
	fieldVMI      protowire.Number = 2
)

func appendField(to []byte, n protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(to, n, protowire.BytesType), v)
}

// info says at which points the launcher calls the hook.
func (h *Hook) info([]byte) ([]byte, error) {
	out := appendField(nil, fieldName, "dxpu")
	for _, p := range []string{pointDefine, pointShutdown} {
		out = appendField(out, fieldPoints, string(appendField(nil, fieldName, p)))
	}
	return appendField(out, fieldVersions, callbacksVersion), nil
}

func (h *Hook) define(request []byte) ([]byte, error) {
	fields := map[protowire.Number]string{}
	for len(request) > 0 {
		n, kind, size := protowire.ConsumeField(request)
		if size < 0 {
			return nil, status.Error(codes.InvalidArgument, protowire.ParseError(size).Error())
		}
		if kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(request)
			v, _ := protowire.ConsumeBytes(request[tag:size])
			fields[n] = string(v)
		}
		request = request[size:]
	}
	domain, err := h.Define(fields[fieldVMI], fields[fieldDomain])
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, fmt.Sprintf("dxpu: %v", err))
	}
	return appendField(nil, fieldDomain, domain), nil
}

func (h *Hook) end([]byte) ([]byte, error) {
	h.once.Do(func() { close(h.shutdown) })
	return nil, nil
}
