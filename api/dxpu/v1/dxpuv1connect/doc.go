// Package dxpuv1connect has the clients and handlers of DxPU's services, PoolService
// for people and programs and NodeService for hosts and boxes, over Connect, gRPC and
// gRPC-Web. It is generated from ../*.proto.
package dxpuv1connect
