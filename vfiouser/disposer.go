package vfiouser

import "github.com/dxpu-project/dxpu/internal/rawio/rights"

// Disposer closes the descriptors that a peer has sent, without a wait for any of them. A zero
// Disposer is ready for use. All connections of one peer share one.
type Disposer = rights.Disposer
