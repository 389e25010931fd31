package pcie_test

import (
	"fmt"

	"github.com/dxpu-project/dxpu/pcie"
)

func ExampleParseBDF() {
	id, err := pcie.ParseBDF("0000:3a:00.1")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%v is function %d of device %d on bus %#x; on the wire it is %#04x\n", id, id.Function(), id.Device(), id.Bus(), uint16(id))
	// Output: 3a:00.1 is function 1 of device 0 on bus 0x3a; on the wire it is 0x3a01
}

// Device Control holds Max_Payload_Size as a field of 3 bits.
func ExamplePayloadSize() {
	for field := range uint8(8) {
		if size, ok := pcie.DecodePayloadSize(field); ok {
			fmt.Printf("%d: %d bytes\n", field, size)
		}
	}
	fmt.Println(pcie.PayloadSize(512).Encode(), pcie.PayloadSize(500).Valid())
	// Output:
	// 0: 128 bytes
	// 1: 256 bytes
	// 2: 512 bytes
	// 3: 1024 bytes
	// 4: 2048 bytes
	// 5: 4096 bytes
	// 2 false
}
