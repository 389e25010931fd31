package tlp

import "fmt"

// Message codes of Packet.Code (appendix F).
const (
	CodeUnlock            = 0x00
	CodeInvalidateRequest = 0x01
	CodeInvalidateCpl     = 0x02
	CodePageRequest       = 0x04
	CodePRGResponse       = 0x05
	CodeLTR               = 0x10
	CodeOBFF              = 0x12
	CodePMActiveStateNak  = 0x14
	CodePMPME             = 0x18
	CodePMETurnOff        = 0x19
	CodePMETOAck          = 0x1b
	CodeAssertINTA        = 0x20
	CodeAssertINTB        = 0x21
	CodeAssertINTC        = 0x22
	CodeAssertINTD        = 0x23
	CodeDeassertINTA      = 0x24
	CodeDeassertINTB      = 0x25
	CodeDeassertINTC      = 0x26
	CodeDeassertINTD      = 0x27
	CodeErrCor            = 0x30
	CodeErrNonFatal       = 0x31
	CodeErrFatal          = 0x33
	CodeSetSlotPowerLimit = 0x50
	CodePTMRequest        = 0x52
	CodePTMResponse       = 0x53
	CodeVendorType0       = 0x7e
	CodeVendorType1       = 0x7f
)

var codeNames = map[uint8]string{
	CodeUnlock:            "Unlock",
	CodeInvalidateRequest: "Invalidate Request",
	CodeInvalidateCpl:     "Invalidate Completion",
	CodePageRequest:       "Page Request",
	CodePRGResponse:       "PRG Response",
	CodeLTR:               "LTR",
	CodeOBFF:              "OBFF",
	CodePMActiveStateNak:  "PM_Active_State_Nak",
	CodePMPME:             "PM_PME",
	CodePMETurnOff:        "PME_Turn_Off",
	CodePMETOAck:          "PME_TO_Ack",
	CodeAssertINTA:        "Assert_INTA",
	CodeAssertINTB:        "Assert_INTB",
	CodeAssertINTC:        "Assert_INTC",
	CodeAssertINTD:        "Assert_INTD",
	CodeDeassertINTA:      "Deassert_INTA",
	CodeDeassertINTB:      "Deassert_INTB",
	CodeDeassertINTC:      "Deassert_INTC",
	CodeDeassertINTD:      "Deassert_INTD",
	CodeErrCor:            "ERR_COR",
	CodeErrNonFatal:       "ERR_NONFATAL",
	CodeErrFatal:          "ERR_FATAL",
	CodeSetSlotPowerLimit: "Set_Slot_Power_Limit",
	CodePTMRequest:        "PTM Request",
	CodePTMResponse:       "PTM Response",
	CodeVendorType0:       "Vendor_Defined Type 0",
	CodeVendorType1:       "Vendor_Defined Type 1",
}

// CodeName returns the name of a message code, or the number of an undefined one.
func CodeName(code uint8) string {
	if name, ok := codeNames[code]; ok {
		return name
	}
	return fmt.Sprintf("Code(%#02x)", code)
}

// needsTC0 reports whether messages with this code must use traffic class 0 and
// receivers must check it (sections 2.2.8.1 to 2.2.8.5).
func needsTC0(code uint8) bool {
	switch code {
	case CodeUnlock, CodeSetSlotPowerLimit,
		CodePMActiveStateNak, CodePMPME, CodePMETurnOff, CodePMETOAck,
		CodeErrCor, CodeErrNonFatal, CodeErrFatal:
		return true
	}
	return code >= CodeAssertINTA && code <= CodeDeassertINTD
}

var routingNames = [...]string{
	"to root complex", "by address", "by ID", "broadcast from root complex",
	"local", "gathered to root complex", "reserved 6", "reserved 7",
}

// String names the destination of the message.
func (r Routing) String() string { return routingNames[r&routingMask] }
