// Package devicedata is the data that the controller leaves in the status of an allocated
// device for the plugin on the node.
package devicedata

// Data says which lease serves a device, and where on the host it is.
type Data struct {
	Lease string `json:"lease"`
	GPU   string `json:"gpu"`
	Host  string `json:"host"`
	Slot  uint32 `json:"slot"`
	// Local is whether the GPU is one of the host's own machine. Serial is that of such a GPU.
	Local  bool   `json:"local,omitempty"`
	Serial string `json:"serial,omitempty"`
}
