// Package cohdi serves the REST interface of a fabric manager that the components of
// CoHDI use (github.com/CoHDI: composable-dra-driver, dynamic-device-scaler and
// composable-resource-operator), on top of the pool's API.
//
// A machine is a host, with the host's ID as mach_uuid. A resource is a GPU, with the GPU's
// ID as res_uuid. A resource that is added is a lease of one GPU with the label Label; other
// leases are not shown, because an operator would remove what it has not added.
package cohdi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// Label marks the leases of the interface.
const Label = "cohdi.dxpu.dev/machine"

// Config says what the interface serves.
type Config struct {
	// Client returns a client of the pool that has the rights of a request's
	// Authorization header.
	Client func(*http.Request) dxpuv1connect.PoolServiceClient
	// Wait bounds the time until a GPU is attached or detached: below the 180 s after which
	// composable-resource-operator gives up. 0: 150 s.
	Wait time.Duration
}

type server struct {
	Config
}

// maxBody bounds the body of a request, in bytes. The components send below 1 KiB.
const maxBody = 64 << 10

// Handler returns the handler of the paths below /id_manager/ and /fabric_manager/.
func Handler(c Config) http.Handler {
	if c.Wait == 0 {
		c.Wait = 150 * time.Second
	}
	s := &server{c}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /id_manager/realms/{realm}/protocol/openid-connect/token", s.token)
	const machines = "/fabric_manager/api/v1/machines"
	handle := func(pattern string, do func(context.Context, *call) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, do) })
	}
	handle("GET "+machines, listMachines)
	handle("GET "+machines+"/{machine}", getMachine)
	handle("GET "+machines+"/{machine}/available-reserved-resources", available)
	handle("PATCH "+machines+"/{machine}/update", s.add)
	handle("DELETE "+machines+"/{machine}/update", s.remove)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, connect.NewError(connect.CodeNotFound, fmt.Errorf("no such call: %s %s", r.Method, r.URL.Path)))
	})
	return http.NewCrossOriginProtection().Handler(mux)
}

// call is a request to the fabric manager.
type call struct {
	api     dxpuv1connect.PoolServiceClient
	request *http.Request
	machine string // of the path; empty: all
	tenant  string
}

// serve answers a request: 204 without an answer.
func (s *server) serve(w http.ResponseWriter, r *http.Request, do func(context.Context, *call) (any, error)) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	secret, err := secretOf(r.Header.Get("Authorization"))
	if err != nil {
		fail(w, err)
		return
	}
	c := &call{api: s.Client(as(r, secret)), request: r, machine: r.PathValue("machine"), tenant: r.URL.Query().Get("tenant_uuid")}
	if c.tenant == "" {
		fail(w, invalid("tenant_uuid is missing: the ID of a tenant of the pool"))
		return
	}
	answer, err := do(r.Context(), c)
	switch {
	case err != nil:
		fail(w, err)
	case answer == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		reply(w, http.StatusOK, answer)
	}
}

// as returns a request with the sender of another one and a token of the pool.
func as(r *http.Request, secret string) *http.Request {
	out := r.Clone(r.Context())
	out.Header.Del("Cookie") // no page of the manager makes these calls
	out.Header.Del("Authorization")
	if secret != "" {
		out.Header.Set("Authorization", "Bearer "+secret)
	}
	return out
}

func invalid(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}

func reply(w http.ResponseWriter, status int, answer any) {
	raw, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(raw)
}

// failure is the body of an answer that reports an error.
type failure struct {
	Status int `json:"status"`
	Detail struct {
		Code    string         `json:"code"`
		Message string         `json:"message"`
		Data    map[string]any `json:"data"`
	} `json:"detail"`
}

var statuses = map[connect.Code]int{
	connect.CodeInvalidArgument: http.StatusBadRequest, connect.CodeUnauthenticated: http.StatusUnauthorized,
	connect.CodePermissionDenied: http.StatusForbidden, connect.CodeNotFound: http.StatusNotFound,
	connect.CodeAlreadyExists: http.StatusConflict, connect.CodeFailedPrecondition: http.StatusConflict,
	connect.CodeResourceExhausted: http.StatusConflict, connect.CodeUnavailable: http.StatusServiceUnavailable,
	connect.CodeDeadlineExceeded: http.StatusGatewayTimeout,
}

// fail reports an error in the words of the manager.
func fail(w http.ResponseWriter, err error) {
	var f failure
	code := connect.CodeOf(err)
	f.Status = statuses[code]
	if f.Status == 0 {
		f.Status = http.StatusInternalServerError
	}
	f.Detail.Code, f.Detail.Message, f.Detail.Data = code.String(), err.Error(), map[string]any{}
	if e := (*connect.Error)(nil); errors.As(err, &e) {
		f.Detail.Message = e.Message()
	}
	reply(w, f.Status, f)
}
