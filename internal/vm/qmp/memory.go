package qmp

import "context"

// A MemoryBackend is one of the objects that hold a guest's memory. Without one on
// its command line, QEMU makes one of its own.
type MemoryBackend struct {
	ID    string `json:"id"`
	Size  uint64 `json:"size"` // bytes
	Share bool   `json:"share"`
}

// MemoryBackends returns the memory backends.
func (c *Client) MemoryBackends(ctx context.Context) ([]MemoryBackend, error) {
	var out []MemoryBackend
	err := c.Execute(ctx, "query-memdev", nil, &out)
	return out, err
}

// ObjectType returns the type of a user-created object, such as
// "memory-backend-ram".
func (c *Client) ObjectType(ctx context.Context, id string) (string, error) {
	var out string
	err := c.Execute(ctx, "qom-get", map[string]string{"path": "/objects/" + id, "property": "type"}, &out)
	return out, err
}
