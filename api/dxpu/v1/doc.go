// Package dxpuv1 is the API of DxPU: what managers, nodes and commands say to each
// other, and the state of a pool as callers see it. It is generated from the
// .proto files beside it, where every message and field is explained.
package dxpuv1
