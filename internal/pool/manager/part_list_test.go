package manager

import (
	"fmt"
	"testing"

	"connectrpc.com/connect"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// fullBox is a pool with a host and a box whose slots are all taken: by parts of its GPUs, or
// by whole GPUs.
func fullBox(t fatalTester, slots int, parts bool) *world {
	if !parts {
		w := newWorld(t, Config{}, hostNode("h1", slots), boxNode("b1", slots))
		for range slots / 8 {
			w.create(&dxpuv1.LeaseSpec{Count: 8})
		}
		w.settle()
		return w
	}
	gpus := slots / 5 // with four slots each for parts
	w := newWorld(t, Config{}, hostNode("h1", slots), dividedBox("b1", gpus))
	for range 4 * gpus {
		w.create(part(256, 250))
	}
	w.settle()
	return w
}

// The messages of all GPUs of a box are those of each GPU alone.
func TestGPUsOfABox(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 16), dividedBox("b1", 8))
	w.create(&dxpuv1.LeaseSpec{Count: 2})
	for i := range uint32(8) {
		w.create(part(100+uint64(i), 150+i))
	}
	w.settle()
	w.delete(w.create(part(300, 500)), true) // it leaves
	_ = w.m.view(func(tx *tx) error {
		n := tx.nodes.get("b1")
		for _, g := range tx.boxMessage(n).Gpus {
			if one := tx.gpuMessage(n, n.slot(g.Slot)); !proto.Equal(g, one) {
				t.Errorf("GPU %v of the box, %v alone", g, one)
			}
		}
		if len(tx.boxMessage(n).Gpus) != 8 {
			t.Errorf("%d GPUs", len(tx.boxMessage(n).Gpus))
		}
		return nil
	})
}

// BenchmarkListGPUs measures a list of the GPUs of a box.
func BenchmarkListGPUs(b *testing.B) {
	for _, parts := range []bool{false, true} {
		for _, slots := range []int{128, maxSlots} {
			b.Run(fmt.Sprintf("parts=%v/slots=%d", parts, slots), func(b *testing.B) {
				w := fullBox(b, slots, parts)
				ctx := auth.With(b.Context(), auth.Identity{Actor: "t-1", Role: dxpuv1.Role_ROLE_OPERATOR})
				for b.Loop() {
					res, err := w.api().ListGPUs(ctx, connect.NewRequest(&dxpuv1.ListGPUsRequest{PageSize: maxPage}))
					if err != nil || len(res.Msg.Gpus) == 0 {
						b.Fatal(res, err)
					}
				}
			})
		}
	}
}
