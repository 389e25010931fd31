package cfgspace

// Offsets of the registers common to all functions (section 7.5.1.1).
const (
	OffVendor     = 0x00 // 2 bytes
	OffDevice     = 0x02 // 2
	OffCommand    = 0x04 // 2
	OffStatus     = 0x06 // 2
	OffRevision   = 0x08 // 1
	OffClass      = 0x09 // 3
	OffCacheLine  = 0x0c // 1
	OffHeaderType = 0x0e // 1
	OffBAR0       = 0x10 // 4 each; six in a type 0 header, two in a type 1
	OffCapPtr     = 0x34 // 1
	OffIntLine    = 0x3c // 1
	OffIntPin     = 0x3d // 1
)

// Offsets of a type 0 header (section 7.5.1.2).
const (
	OffSubVendor = 0x2c // 2
	OffSubDevice = 0x2e // 2
	OffROM       = 0x30 // 4
)

// Offsets of a type 1 header (section 7.5.1.3).
const (
	OffPrimaryBus     = 0x18 // 1
	OffSecondaryBus   = 0x19 // 1
	OffSubordinateBus = 0x1a // 1
	OffIOBase         = 0x1c // 1
	OffIOLimit        = 0x1d // 1
	OffSecStatus      = 0x1e // 2
	OffMemBase        = 0x20 // 2
	OffMemLimit       = 0x22 // 2
	OffPrefBase       = 0x24 // 2
	OffPrefLimit      = 0x26 // 2
	OffPrefBaseUpper  = 0x28 // 4
	OffPrefLimitUpper = 0x2c // 4
	OffIOBaseUpper    = 0x30 // 2
	OffIOLimitUpper   = 0x32 // 2
	OffBridgeControl  = 0x3e // 2
)

// Bits of the Command register.
const (
	CmdIO          = 1 << 0
	CmdMemory      = 1 << 1
	CmdBusMaster   = 1 << 2
	CmdParity      = 1 << 6
	CmdSERR        = 1 << 8
	CmdINTxDisable = 1 << 10
)

// Bits of the Status register.
const (
	StaInterrupt    = 1 << 3
	StaCapabilities = 1 << 4
	StaMasterParity = 1 << 8
	StaSigAbort     = 1 << 11
	StaRcvAbort     = 1 << 12
	StaMasterAbort  = 1 << 13
	StaSigError     = 1 << 14
	StaParity       = 1 << 15
	staClear        = StaMasterParity | StaSigAbort | StaRcvAbort | StaMasterAbort | StaSigError | StaParity
)

// BridgeSecReset is the Secondary Bus Reset bit of Bridge Control.
const BridgeSecReset = 1 << 6

// Capability IDs (PCI Code and ID Assignment Specification, section 2).
const (
	CapPM        = 0x01
	CapMSI       = 0x05
	CapVendor    = 0x09
	CapSubsystem = 0x0d
	CapExpress   = 0x10
	CapMSIX      = 0x11
)

// Extended capability IDs (section 3 of the same).
const (
	ExtAER          = 0x0001
	ExtSerial       = 0x0003
	ExtVendor       = 0x000b
	ExtACS          = 0x000d
	ExtSRIOV        = 0x0010
	ExtResizableBAR = 0x0015
)

// Offsets in the Power Management capability (section 7.5.2).
const (
	OffPMCaps   = 0x02 // 2
	OffPMStatus = 0x04 // 2: PMCSR
	pmLength    = 8
)

// Offsets in the PCI Express capability (section 7.5.3).
const (
	OffExpCaps     = 0x02 // 2
	OffDevCap      = 0x04 // 4
	OffDevCtl      = 0x08 // 2
	OffDevSta      = 0x0a // 2
	OffLinkCap     = 0x0c // 4
	OffLinkCtl     = 0x10 // 2
	OffLinkSta     = 0x12 // 2
	OffSlotCap     = 0x14 // 4
	OffSlotCtl     = 0x18 // 2
	OffSlotSta     = 0x1a // 2
	OffRootCtl     = 0x1c // 2
	OffRootCap     = 0x1e // 2
	OffRootSta     = 0x20 // 4
	OffDevCap2     = 0x24 // 4
	OffDevCtl2     = 0x28 // 2
	OffLinkCap2    = 0x2c // 4
	OffLinkCtl2    = 0x30 // 2
	expressLength  = 0x3c
	expressVersion = 2
)

// Bits of PCI Express Capabilities, Device Capabilities and Device Control.
const (
	ExpSlot = 1 << 8 // slot implemented

	DevCapExtTag = 1 << 5
	DevCapRBER   = 1 << 15 // role-based error reporting
	DevCapFLR    = 1 << 28

	DevCtlCorrectable = 1 << 0
	DevCtlNonFatal    = 1 << 1
	DevCtlFatal       = 1 << 2
	DevCtlUnsupported = 1 << 3
	DevCtlRelaxed     = 1 << 4
	DevCtlMPS         = 7 << 5
	DevCtlExtTag      = 1 << 8
	DevCtlNoSnoop     = 1 << 11
	DevCtlMRRS        = 7 << 12
	DevCtlFLR         = 1 << 15

	DevStaCorrectable = 1 << 0
	DevStaNonFatal    = 1 << 1
	DevStaFatal       = 1 << 2
	DevStaUnsupported = 1 << 3
	DevStaPending     = 1 << 5
	devStaClear       = DevStaCorrectable | DevStaNonFatal | DevStaFatal | DevStaUnsupported
)

// Bits of the link registers.
const (
	LinkCapSurprise   = 1 << 19 // surprise down reporting
	LinkCapActive     = 1 << 20 // data link layer active reporting
	LinkCapNotify     = 1 << 21 // link bandwidth notification
	LinkCapCompliance = 1 << 22 // ASPM optionality compliance, 1 for revision 3 and later
	LinkCtlDisable    = 1 << 4
	LinkCtlRetrain    = 1 << 5
	LinkStaActive     = 1 << 13
	LinkStaSlotClock  = 1 << 12
	linkStaClear      = 1<<14 | 1<<15 // bandwidth management, autonomous bandwidth
	linkCtlWritable   = 0x03 | 1<<3 | LinkCtlDisable | 1<<6 | 1<<7 | 1<<8 | 1<<9 | 1<<10 | 1<<11
)

// Bits of the slot registers.
const (
	SlotCapAttnButton = 1 << 0
	SlotCapPowerCtl   = 1 << 1
	SlotCapAttnInd    = 1 << 3
	SlotCapPowerInd   = 1 << 4
	SlotCapSurprise   = 1 << 5
	SlotCapHotPlug    = 1 << 6
	SlotCapNoCmdCpl   = 1 << 18

	SlotCtlAttnButton = 1 << 0
	SlotCtlPowerFault = 1 << 1
	SlotCtlPresence   = 1 << 3
	SlotCtlCmdCpl     = 1 << 4
	SlotCtlHotPlug    = 1 << 5 // hot-plug interrupt enable
	SlotCtlAttnInd    = 3 << 6
	SlotCtlPowerInd   = 3 << 8
	SlotCtlPowerOff   = 1 << 10
	SlotCtlLinkChange = 1 << 12
	slotCtlWritable   = 0x1fff

	SlotStaAttnButton = 1 << 0
	SlotStaPowerFault = 1 << 1
	SlotStaPresence   = 1 << 3 // presence detect changed
	SlotStaCmdCpl     = 1 << 4
	SlotStaPresent    = 1 << 6 // presence detect state
	SlotStaLinkChange = 1 << 8
	slotStaClear      = 0x1f | SlotStaLinkChange
)

// Bits of Device Capabilities 2 and Device Control 2.
const (
	DevCap2TimeoutRanges  = 0xf
	DevCap2TimeoutDisable = 1 << 4
	DevCap2ARIForward     = 1 << 5
	DevCap2AtomicRouting  = 1 << 6
	DevCap2Atomic32       = 1 << 7
	DevCap2Atomic64       = 1 << 8
	DevCap2TagCompleter   = 1 << 16 // 10-bit tag completer
	DevCap2TagRequester   = 1 << 17 // 10-bit tag requester

	DevCtl2Timeout        = 0xf
	DevCtl2TimeoutDisable = 1 << 4
	DevCtl2ARIForward     = 1 << 5
	DevCtl2AtomicRequest  = 1 << 6
	DevCtl2AtomicBlock    = 1 << 7
	DevCtl2TenBitTag      = 1 << 12
)

// Offsets in the Advanced Error Reporting extended capability (section 7.8.4).
const (
	OffAERUncorrectable = 0x04
	OffAERMask          = 0x08
	OffAERSeverity      = 0x0c
	OffAERCorrectable   = 0x10
	OffAERCorMask       = 0x14
	OffAERControl       = 0x18
	OffAERHeader        = 0x1c // 16 bytes
	OffAERRootCommand   = 0x2c
	OffAERRootStatus    = 0x30
	aerLength           = 0x2c
	aerRootLength       = 0x38
)

// Bits of the AER registers.
const (
	AERPoisoned    = 1 << 12
	AERTimeout     = 1 << 14
	AERAbort       = 1 << 15
	AERUnexpected  = 1 << 16
	AEROverflow    = 1 << 17
	AERMalformed   = 1 << 18
	AERECRC        = 1 << 19
	AERUnsupported = 1 << 20
	// aerKnown are the uncorrectable errors of a port without prefixes and
	// other options: data link protocol, surprise down, poisoned, flow control,
	// timeout, abort, unexpected, overflow, malformed, ECRC, unsupported, ACS, internal.
	aerKnown = 1<<4 | 1<<5 | 1<<12 | 1<<13 | 1<<14 | 1<<15 | 1<<16 | 1<<17 | 1<<18 | 1<<19 | 1<<20 | 1<<21 | 1<<22
	// aerFatal is the reset value of the severity register.
	aerFatal = 1<<4 | 1<<5 | 1<<13 | 1<<17 | 1<<18 | 1<<22

	AERAdvisory  = 1 << 13 // correctable: advisory non-fatal error
	aerCorrKnown = 1<<0 | 1<<6 | 1<<7 | 1<<8 | 1<<12 | 1<<13 | 1<<14
)

// Bits of MSI Message Control and MSI-X Message Control.
const (
	MSIEnable    = 1 << 0
	MSI64        = 1 << 7
	MSIMaskable  = 1 << 8
	MSIXEnable   = 1 << 15
	MSIXMask     = 1 << 14
	msixSizeMask = 0x7ff
	msixLength   = 12
)
