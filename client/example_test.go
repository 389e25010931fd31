package client_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/client"
)

// A pool with three managers, whose authority is known by its hash.
func ExampleNew() {
	c, err := client.New(client.Config{
		Managers: []string{"https://m1:7470", "https://m2:7470", "https://m3:7470"},
		CAHash:   "sha256:88d4266fd4e6338d13b845fcf289579d209c897823b9217da3e161936f031589",
		Token:    "dxpu_k3v5c7q2mn_aaaaaaaaaaaaaaaaaaaaaaaaaa", // printed by "dxpu token create"
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	// c.Pool.CreateLease, c.Pool.ListGPUs and so on call the manager that leads.

	// Output:
}

// An error is a connect.Error: its code says what happened.
func ExampleClient_pool() {
	manager := fakeManager()
	defer manager.Close()
	c, err := client.New(client.Config{Managers: []string{manager.URL}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ctx := context.Background()
	res, err := c.Pool.CreateLease(ctx, connect.NewRequest(&dxpuv1.CreateLeaseRequest{
		RequestId: "job-17", // the same lease when the call is repeated
		Spec:      &dxpuv1.LeaseSpec{Count: 2, HostId: "h1"},
	}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Msg.Lease.Id)

	_, err = c.Pool.GetLease(ctx, connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: "l-9"}))
	fmt.Println(connect.CodeOf(err) == connect.CodeNotFound)

	// Output:
	// l-1
	// true
}

// poolService is a manager that knows one lease.
type poolService struct {
	dxpuv1connect.UnimplementedPoolServiceHandler
}

func (poolService) CreateLease(_ context.Context, r *connect.Request[dxpuv1.CreateLeaseRequest]) (*connect.Response[dxpuv1.CreateLeaseResponse], error) {
	return connect.NewResponse(&dxpuv1.CreateLeaseResponse{Lease: &dxpuv1.Lease{Id: "l-1", Spec: r.Msg.Spec}}), nil
}

func (poolService) GetLease(_ context.Context, r *connect.Request[dxpuv1.GetLeaseRequest]) (*connect.Response[dxpuv1.GetLeaseResponse], error) {
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("lease %q does not exist", r.Msg.LeaseId))
}

func fakeManager() *httptest.Server {
	mux := http.NewServeMux()
	mux.Handle(dxpuv1connect.NewPoolServiceHandler(poolService{}))
	return httptest.NewServer(mux)
}
