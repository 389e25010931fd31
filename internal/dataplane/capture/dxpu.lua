-- Wireshark dissector for DxPU: the datagrams that two proxies exchange
-- (frame/PROTOCOL.md) and the records of "dxpu capture" (capture/README.md),
-- down to the fields of the PCI Express TLPs in them.
--
--   wireshark -X lua_script:dxpu.lua FILE, or put this file into the folder
--   "Personal Lua Plugins" that Help > About > Folders shows.
--
-- Made for Wireshark 3.6 to 4.6 (Lua 5.2 to 5.4).

local bits = bit32 or bit -- the first is Lua 5.2's, the second Wireshark's
local band, bxor, rshift = bits.band, bits.bxor, bits.rshift

local dxpu = Proto("dxpu", "DxPU datagram")
local rec = Proto("dxpu_rec", "DxPU capture record")

dxpu.prefs.ports = Pref.range("UDP ports", "", "Ports of proxies; on other ports, datagrams are recognized by their contents", 65535)
dxpu.prefs.body = Pref.enum("Body of traffic datagrams", 0, "Whether bindings have a cipher",
  { { 1, "guess", 0 }, { 2, "clear", 1 }, { 3, "sealed", 2 } }, false)
dxpu.prefs.crc = Pref.bool("Check CRCs", true, "Compute the CRC of every packet, and the ECRC of TLPs")

-- Fields -------------------------------------------------------------------

local datagram_types = { [1] = "hello", [2] = "hello-ack", [3] = "confirm", [4] = "unknown-session", [5] = "traffic", [6] = "cookie" }
local kinds = { [0] = "padding", [1] = "header", [2] = "data", [3] = "run", [0x10] = "ack", [0x11] = "ping", [0x12] = "close", [0x20] = "hello" }
local crc_status = { [0] = "bad", [1] = "good", [2] = "not checked" }
local reasons = { [1] = "detached", [2] = "proxy shut down", [3] = "device lost", [4] = "protocol broken", [0xffff] = "cannot be delivered" }
local cpl_status = { [0] = "SC", [1] = "UR", [2] = "RRS", [4] = "CA" }
local routing = { [0] = "to root complex", "by address", "by ID", "broadcast from root complex", "local", "gathered to root complex" }
local address_types = { [0] = "untranslated", "translation request", "translated", "reserved" }
local codes = {
  [0x00] = "Unlock", [0x01] = "Invalidate Request", [0x02] = "Invalidate Completion", [0x04] = "Page Request",
  [0x05] = "PRG Response", [0x10] = "LTR", [0x12] = "OBFF", [0x14] = "PM_Active_State_Nak", [0x18] = "PM_PME",
  [0x19] = "PME_Turn_Off", [0x1b] = "PME_TO_Ack", [0x20] = "Assert_INTA", [0x21] = "Assert_INTB", [0x22] = "Assert_INTC",
  [0x23] = "Assert_INTD", [0x24] = "Deassert_INTA", [0x25] = "Deassert_INTB", [0x26] = "Deassert_INTC", [0x27] = "Deassert_INTD",
  [0x30] = "ERR_COR", [0x31] = "ERR_NONFATAL", [0x33] = "ERR_FATAL", [0x50] = "Set_Slot_Power_Limit", [0x52] = "PTM Request",
  [0x53] = "PTM Response", [0x7e] = "Vendor_Defined Type 0", [0x7f] = "Vendor_Defined Type 1",
}

local P, F = ProtoField, {}
local u8, u16, u32, u64, flag, bytes, text = P.uint8, P.uint16, P.uint32, P.uint64, P.bool, P.bytes, P.string
local DEC, HEX = base.DEC, base.HEX

-- Datagram header.
F.version = u8("dxpu.version", "Version", DEC, nil, 0xf0)
F.type = u8("dxpu.type", "Type", DEC, datagram_types, 0x0f)
F.key_phase = u8("dxpu.key_phase", "Key phase")
F.path = u8("dxpu.path", "Path")
F.binding = u32("dxpu.binding", "Binding", HEX)
F.epoch = u32("dxpu.epoch", "Epoch")
F.number = u64("dxpu.number", "Datagram number")
F.initiator = u64("dxpu.initiator", "Session of the initiator", HEX)
F.responder = u64("dxpu.responder", "Session of the responder", HEX)
F.cookie = bytes("dxpu.cookie", "Cookie")
F.sealed = bytes("dxpu.sealed", "Sealed body")
F.tag = bytes("dxpu.tag", "Tag (AES-256-GCM)")
F.check = u32("dxpu.check", "Check", HEX)
-- Packets.
F.kind = u8("dxpu.kind", "Kind", HEX, kinds)
F.crc = u32("dxpu.crc", "Packet CRC", HEX)
F.crc_status = u8("dxpu.crc.status", "CRC status", DEC, crc_status)
F.seq = u64("dxpu.seq", "TLP sequence number")
F.again = P.framenum("dxpu.seen_in", "Sent before in", base.NONE)
F.payload_len = u16("dxpu.payload_len", "Payload length")
F.header_len = u8("dxpu.header_dw", "TLP header in double words")
F.src_node = u32("dxpu.src.node", "Source node")
F.src_slot = u16("dxpu.src.slot", "Source slot")
F.dst_node = u32("dxpu.dst.node", "Destination node")
F.dst_slot = u16("dxpu.dst.slot", "Destination slot")
F.hp_path = u8("dxpu.header.path", "Path")
F.hp_digest = flag("dxpu.header.digest", "TLP digest follows", 8, nil, 0x01)
F.tlp_crc = u32("dxpu.tlp_crc", "TLP CRC", HEX)
F.tlp_crc_status = u8("dxpu.tlp_crc.status", "TLP CRC status", DEC, crc_status)
F.run_count = u16("dxpu.run.count", "TLPs in the run")
F.run_crc = u32("dxpu.run.crc", "Payload CRC", HEX)
F.run_crc_status = u8("dxpu.run.crc.status", "Payload CRC status", DEC, crc_status)
F.run_payload = bytes("dxpu.run.payload", "Payloads")
F.chunk_len = u16("dxpu.chunk_len", "Chunk length")
F.offset = u16("dxpu.offset", "Chunk offset")
F.chunk = bytes("dxpu.chunk", "Chunk")
F.ack_path = u8("dxpu.ack.path", "Path acknowledged")
F.ack_more = u8("dxpu.ack.further", "Further ranges")
F.ack_marked = u8("dxpu.ack.marked", "Datagrams marked by the network, modulo 256")
F.ack_delay = u32("dxpu.ack.delay", "Delay in nanoseconds")
F.ack_largest = u64("dxpu.ack.largest", "Largest number received")
F.ack_limit = u64("dxpu.ack.limit", "Limit")
F.ack_first = u32("dxpu.ack.first", "Numbers in the first range")
F.ack_gap = u32("dxpu.ack.gap", "Numbers missing")
F.ack_run = u32("dxpu.ack.run", "Numbers received below those")
F.ack_range = text("dxpu.ack.range", "Received")
F.reason = u16("dxpu.close.reason", "Reason", DEC, reasons)
F.cipher = u8("dxpu.hello.cipher", "Cipher", DEC, { [0] = "none", [1] = "AES-256-GCM" })
F.limit = u64("dxpu.hello.limit", "Limit")
F.echo = u64("dxpu.hello.echo", "Echo")
F.padding = bytes("dxpu.padding", "Padding")
-- TLP.
F.tlp = P.none("dxpu.tlp", "PCI Express TLP")
F.t_name = text("dxpu.tlp.type", "Type")
F.t_fmt = u8("dxpu.tlp.fmt", "Fmt", HEX, nil, 0xe0)
F.t_bits = u8("dxpu.tlp.type_bits", "Type bits", HEX, nil, 0x1f)
F.t_prefix = bytes("dxpu.tlp.prefix", "Prefix")
F.t_tc = u8("dxpu.tlp.tc", "Traffic class", DEC, nil, 0x70)
F.t_attr = u8("dxpu.tlp.attr", "Attributes", HEX)
F.t_ln = flag("dxpu.tlp.ln", "Reserved (LN before revision 6.0)", 8, nil, 0x02)
F.t_th = flag("dxpu.tlp.th", "Processing hints", 8, nil, 0x01)
F.t_td = flag("dxpu.tlp.td", "Digest follows", 8, nil, 0x80)
F.t_ep = flag("dxpu.tlp.ep", "Poisoned", 8, nil, 0x40)
F.t_at = u8("dxpu.tlp.at", "Address type", DEC, address_types, 0x0c)
F.t_length = u16("dxpu.tlp.length", "Length in double words")
F.t_requester = u16("dxpu.tlp.requester", "Requester", HEX)
F.t_completer = u16("dxpu.tlp.completer", "Completer", HEX)
F.t_target = u16("dxpu.tlp.target", "Target", HEX)
F.t_tag = u16("dxpu.tlp.tag", "Tag")
F.t_st = u8("dxpu.tlp.st", "Steering tag", HEX)
F.t_last = u8("dxpu.tlp.last_be", "Last byte enables", HEX, nil, 0xf0)
F.t_first = u8("dxpu.tlp.first_be", "First byte enables", HEX, nil, 0x0f)
F.t_addr = u64("dxpu.tlp.addr", "Address", HEX)
F.t_ph = u8("dxpu.tlp.ph", "Processing hint", DEC, nil, 0x03)
F.t_register = u16("dxpu.tlp.register", "Register", HEX)
F.t_status = u8("dxpu.tlp.status", "Status", DEC, cpl_status, 0xe0)
F.t_bcm = flag("dxpu.tlp.bcm", "Byte count modified", 8, nil, 0x10)
F.t_count = u16("dxpu.tlp.byte_count", "Bytes left")
F.t_lower = u8("dxpu.tlp.lower_addr", "Lower address", HEX, nil, 0x7f)
F.t_code = u8("dxpu.tlp.code", "Message code", HEX, codes)
F.t_routing = u8("dxpu.tlp.routing", "Routing", DEC, routing, 0x07)
F.t_msg = bytes("dxpu.tlp.msg_header", "Message header")
F.t_data = bytes("dxpu.tlp.data", "Payload")
F.t_digest = u32("dxpu.tlp.digest", "Digest (ECRC)", HEX)
F.t_digest_status = u8("dxpu.tlp.digest.status", "ECRC status", DEC, crc_status)
F.t_request = P.framenum("dxpu.tlp.request_in", "Request in", base.NONE, frametype.REQUEST)
F.t_response = P.framenum("dxpu.tlp.completion_in", "Completed in", base.NONE, frametype.RESPONSE)
F.t_time = P.relative_time("dxpu.tlp.time", "Time since the request")

local E = {
  crc = ProtoExpert.new("dxpu.crc.bad", "CRC mismatch", expert.group.CHECKSUM, expert.severity.ERROR),
  malformed = ProtoExpert.new("dxpu.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR),
  short = ProtoExpert.new("dxpu.short", "Cut short by the capture", expert.group.UNDECODED, expert.severity.NOTE),
  again = ProtoExpert.new("dxpu.again", "Sent again", expert.group.SEQUENCE, expert.severity.NOTE),
  poisoned = ProtoExpert.new("dxpu.tlp.poisoned", "Poisoned data", expert.group.RESPONSE_CODE, expert.severity.WARN),
  status = ProtoExpert.new("dxpu.tlp.failed", "Request not completed successfully", expert.group.RESPONSE_CODE, expert.severity.WARN),
  unanswered = ProtoExpert.new("dxpu.tlp.no_request", "Completion of no request in this capture", expert.group.SEQUENCE, expert.severity.NOTE),
}

local list, experts = {}, {}
for _, f in pairs(F) do list[#list + 1] = f end
for _, e in pairs(E) do experts[#experts + 1] = e end
dxpu.fields, dxpu.experts = list, experts
F.rec_version = u8("dxpu_rec.version", "Version")
F.rec_received = flag("dxpu_rec.received", "Received from the network", 8, nil, 0x01)
rec.fields = { F.rec_version, F.rec_received }

-- CRCs ---------------------------------------------------------------------

local function crc_table(poly)
  local t = {}
  for i = 0, 255 do
    local c = i
    for _ = 1, 8 do
      c = band(c, 1) == 1 and bxor(rshift(c, 1), poly) or rshift(c, 1)
    end
    t[i] = c
  end
  return t
end

local castagnoli, ieee = crc_table(0x82f63b78), crc_table(0xedb88320)

-- crc continues a CRC over a string.
local function crc(t, c, s)
  c = bxor(c, 0xffffffff)
  for i = 1, #s do
    c = bxor(t[band(bxor(c, s:byte(i)), 0xff)], rshift(c, 8))
  end
  return bxor(c, 0xffffffff) % 0x100000000
end

-- add_crc shows a CRC field and whether it is correct. want is a function that
-- computes the CRC, or nil when that is impossible.
local function add_crc(tree, field, status, range, want)
  local item = tree:add(field, range)
  local state = 2
  if want and dxpu.prefs.crc then
    local right = want()
    state = right == range:uint() and 1 or 0
    if state == 0 then
      item:append_text(string.format(" [should be 0x%08x]", right))
      tree:add_proto_expert_info(E.crc)
    end
  end
  tree:add(status, range, state):set_generated()
  return state
end

-- TLPs ---------------------------------------------------------------------

-- Byte 0 without the header size: name and class of the type.
local tlp_types = {
  [0x00] = { "MRd", mem = true }, [0x01] = { "MRdLk", mem = true }, [0x40] = { "MWr", mem = true, data = true, posted = true },
  [0x02] = { "IORd", io = true }, [0x42] = { "IOWr", io = true, data = true },
  [0x04] = { "CfgRd0", cfg = true }, [0x44] = { "CfgWr0", cfg = true, data = true },
  [0x05] = { "CfgRd1", cfg = true }, [0x45] = { "CfgWr1", cfg = true, data = true },
  [0x0a] = { "Cpl", cpl = true }, [0x4a] = { "CplD", cpl = true, data = true },
  [0x0b] = { "CplLk", cpl = true }, [0x4b] = { "CplDLk", cpl = true, data = true },
  [0x4c] = { "FetchAdd", mem = true, data = true }, [0x4d] = { "Swap", mem = true, data = true },
  [0x4e] = { "CAS", mem = true, data = true }, [0x5b] = { "DMWr", mem = true, data = true },
}

local function tlp_type(b)
  local plain = band(b, 0xdf)
  if band(b, 0xb8) == 0x30 then -- 4 double words, type 10rrr
    return { band(b, 0x40) ~= 0 and "MsgD" or "Msg", msg = true, data = band(b, 0x40) ~= 0, posted = true }
  end
  local t = tlp_types[plain]
  return t and (t.mem or b == plain) and t or nil
end

local function bdf(v) return string.format("%02x:%02x.%x", rshift(v, 8), band(rshift(v, 3), 0x1f), band(v, 7)) end

local function add_bdf(tree, field, range)
  tree:add(field, range):append_text(" (" .. bdf(range:uint()) .. ")")
  return bdf(range:uint())
end

-- add_address shows the address in the last n bytes of a header and PH.
local function add_address(tree, range, n)
  local low = range(n - 4, 4):uint()
  local addr = UInt64.new(low - low % 4, n == 8 and range(0, 4):uint() or 0)
  tree:add(F.t_addr, range(0, n), addr)
  tree:add(F.t_ph, range(n - 1, 1))
  return "0x" .. addr:tohex():gsub("^0+(.)", "%1")
end

local function add_message(tree, h, t)
  tree:add(F.t_routing, h(0, 1))
  tree:add(F.t_code, h(7, 1))
  local to = band(h(0, 1):uint(), 7)
  if to == 1 then
    add_address(tree, h(8, 8), 8)
  elseif to == 2 then
    add_bdf(tree, F.t_target, h(8, 2))
    tree:add(F.t_msg, h(10, 6))
  else
    tree:add(F.t_msg, h(8, 8))
  end
  return codes[h(7, 1):uint()] or string.format("code 0x%02x", h(7, 1):uint())
end

-- add_request shows a request other than a message, from byte 6 on.
local function add_request(tree, h, t, tag)
  local steered = t.mem and band(h(1, 1):uint(), 1) == 1
  if steered then
    tree:add(F.t_st, h(t[1] == "MWr" and 6 or 7, 1))
  end
  if not steered or t[1] == "MWr" then
    tree:add(F.t_last, h(7, 1))
    tree:add(F.t_first, h(7, 1))
  end
  if t.cfg then
    local reg = band(h(10, 2):uint(), 0xffc)
    local to = add_bdf(tree, F.t_target, h(8, 2))
    tree:add(F.t_register, h(10, 2), reg)
    return string.format("%s register 0x%03x tag %d", to, reg, tag)
  end
  local where = add_address(tree, h(8), h:len() - 8)
  return t.posted and where or string.format("%s tag %d", where, tag)
end

local function add_completion(tree, h, t, tag, length)
  local status, count = rshift(h(6, 1):uint(), 5), band(h(6, 2):uint(), 0xfff)
  count = count == 0 and 4096 or count
  add_bdf(tree, F.t_completer, h(4, 2))
  tree:add(F.t_status, h(6, 1))
  tree:add(F.t_bcm, h(6, 1))
  tree:add(F.t_count, h(6, 2), count)
  tree:add(F.t_lower, h(11, 1))
  if status ~= 0 then
    tree:add_proto_expert_info(E.status)
  end
  local low = band(h(11, 1):uint(), 3)
  t.last = not t.data or status ~= 0 or count <= length * 4 - low
  return string.format("tag %d %s%s", tag, cpl_status[status] or "reserved status", t.last and "" or string.format(", %d bytes follow", count - length * 4 + low))
end

-- ecrc computes the digest of section 2.7.1 over end-to-end prefixes, header and
-- payload: a string, whose header starts at byte head (from 1).
local function ecrc(s, head)
  local from = 1
  while from < head and band(s:byte(from), 0x10) == 0 do from = from + 4 end
  s = s:sub(from, head - 1) .. string.char(bits.bor(s:byte(head), 0x01)) .. s:sub(head + 1, head + 1)
    .. string.char(bits.bor(s:byte(head + 2), 0x40)) .. s:sub(head + 3)
  local c = crc(ieee, 0, s)
  return band(c, 0xff) * 0x1000000 + band(rshift(c, 8), 0xff) * 0x10000 + band(rshift(c, 16), 0xff) * 0x100 + rshift(c, 24)
end

-- dissect_tlp shows the TLP in range. whole is true when payload and digest follow
-- the header. full is the size before the capture cut it. It returns the data for
-- the summary, or nil when the bytes are not a TLP.
local function dissect_tlp(range, tree, whole, full)
  local at, raw = 0, range:raw()
  while at + 4 <= #raw and band(raw:byte(at + 1), 0xe0) == 0x80 do at = at + 4 end
  tree = tree:add(F.tlp, range)
  if #raw < at + 12 then
    tree:add_proto_expert_info(E[full > #raw and "short" or "malformed"])
    return nil
  end
  local t = tlp_type(raw:byte(at + 1))
  local size = band(raw:byte(at + 1), 0x20) ~= 0 and 16 or 12
  if not t or #raw < at + size then
    tree:add_proto_expert_info(E[t and full > #raw and "short" or "malformed"])
    return nil
  end
  local kind = {}
  for k, v in pairs(t) do kind[k] = v end
  t = kind
  for p = 0, at - 4, 4 do tree:add(F.t_prefix, range(p, 4)) end

  local h = range(at, size)
  local b1, b2 = h(1, 1):uint(), h(2, 1):uint()
  tree:add(F.t_name, h(0, 1), t[1])
  tree:add(F.t_fmt, h(0, 1))
  tree:add(F.t_bits, h(0, 1))
  tree:add(F.t_tc, h(1, 1))
  tree:add(F.t_attr, h(1, 2), band(b1, 4) + band(rshift(b2, 4), 3))
  tree:add(F.t_ln, h(1, 1))
  tree:add(F.t_th, h(1, 1))
  tree:add(F.t_td, h(2, 1))
  tree:add(F.t_ep, h(2, 1))
  tree:add(F.t_at, h(2, 1))
  if band(b2, 0x40) ~= 0 then tree:add_proto_expert_info(E.poisoned) end
  local length = band(h(2, 2):uint(), 0x3ff)
  if length == 0 and not ((t.cpl or t.msg) and not t.data) then length = 1024 end
  tree:add(F.t_length, h(2, 2), length)
  local requester = t.cpl and h(8, 2) or h(4, 2)
  local tag_at = t.cpl and 10 or 6
  local tag = h(tag_at, 1):uint() + band(rshift(b1, 3), 1) * 256 + rshift(b1, 7) * 512
  if t[1] == "MWr" and band(b1, 1) == 1 then tag = tag - h(6, 1):uint() end -- the steering tag takes its place
  add_bdf(tree, F.t_requester, requester)
  tree:add(F.t_tag, h(tag_at, 1), tag)

  local about
  if t.cpl then
    about = add_completion(tree, h, t, tag, length)
  elseif t.msg then
    about = add_message(tree, h, t)
  else
    about = add_request(tree, h, t, tag)
  end
  local payload = t.data and length * 4 or 0
  if whole then
    local rest = range:len() - at - size
    local have = math.min(payload, rest)
    if have > 0 then tree:add(F.t_data, range(at + size, have)) end
    if band(b2, 0x80) ~= 0 and rest >= payload + 4 then
      add_crc(tree, F.t_digest, F.t_digest_status, range(at + size + payload, 4),
        function() return ecrc(raw:sub(1, at + size + payload), at + 1) end)
    end
    local need = at + size + payload + (band(b2, 0x80) ~= 0 and 4 or 0)
    if full < need then
      tree:add_proto_expert_info(E.malformed)
    elseif #raw < need then
      tree:add_proto_expert_info(E.short)
    end
  end
  if payload > 0 or t.mem and not t.data then
    about = about .. string.format(", %d bytes", length * 4)
  end
  tree:append_text(", " .. t[1] .. " " .. about)
  t.text, t.tag, t.requester, t.tree = t[1] .. " " .. about, tag, requester:uint(), tree
  return t
end

-- Datagrams ----------------------------------------------------------------

local function zero(s) return not s:find("[^%z]") end

-- packet_size returns the size of the packet at the start of s, or nil.
local function packet_size(s)
  local function b(i) return s:byte(i + 1) or 256 end
  local function be(i) return b(i) * 256 + b(i + 1) end
  local kind, n = b(0), nil
  if kind == 0 then
    return zero(s) and #s or nil
  elseif kind == 1 then
    n = 36 + b(1) * 4 + b(25) * 4
    if b(1) < 3 or b(1) > 12 or be(2) > 4096 or be(2) % 4 ~= 0 or b(24) > 7 or b(25) > 1 or be(26) ~= 0 then return nil end
  elseif kind == 2 then
    local size, offset, payload = be(2), be(12), be(14)
    n = 20 + size
    if b(1) ~= 0 or size == 0 or payload > 4096 or payload % 4 ~= 0 or offset % 64 ~= 0 or offset + size > payload
      or size % 64 ~= 0 and offset + size ~= payload then return nil end
  elseif kind == 3 then
    n = 32 + b(1) * 4 + (be(2) > 0 and be(26) * (4 + be(2)) or 0)
    if b(1) < 3 or b(1) > 4 or be(2) > 0 and be(2) < 64 or be(2) > 4096 or be(2) % 4 ~= 0 or be(26) < 2 or b(24) > 7 or b(25) ~= 0 then return nil end
  elseif kind == 0x10 then
    n = 32 + b(2) * 8
    if b(1) > 7 or b(2) > 31 then return nil end
  elseif kind == 0x11 then
    n = 8
    if b(1) ~= 0 or be(2) ~= 0 then return nil end
  elseif kind == 0x12 then
    n = 8
    if b(1) ~= 0 then return nil end
  elseif kind == 0x20 then
    n = 44
    if b(1) > 1 or be(2) ~= 0 then return nil end
  else
    return nil
  end
  return n <= #s and n or nil
end

-- is_clear reports whether a body is a sequence of packets. Sealed bodies look
-- random: about one in a million is taken for clear.
local function is_clear(s)
  if #s == 0 then return false end
  while #s > 0 do
    local n = packet_size(s)
    if not n then return false end
    s = s:sub(n + 1)
  end
  return true
end

local seen = {} -- source, binding, epoch, sequence number and chunk -> first frame
local scope = "" -- binding and epoch of the current datagram

local function add_seq(tree, range, pinfo, key)
  tree:add(F.seq, range)
  key = table.concat({ tostring(pinfo.src), pinfo.src_port, scope, tostring(range:uint64()), key }, " ")
  local first = seen[key]
  if not first then
    seen[key] = pinfo.number
  elseif first < pinfo.number then
    tree:add(F.again, range, first):set_generated()
    tree:add_proto_expert_info(E.again)
  end
end

local add_packet = {}

add_packet[1] = function(r, tree, pinfo, rest)
  local n, payload = r:len(), r(2, 2):uint()
  tree:add(F.header_len, r(1, 1))
  tree:add(F.payload_len, r(2, 2))
  add_seq(tree, r(4, 8), pinfo, "header")
  tree:add(F.src_node, r(12, 4))
  tree:add(F.src_slot, r(16, 2))
  tree:add(F.dst_slot, r(18, 2))
  tree:add(F.dst_node, r(20, 4))
  tree:add(F.hp_path, r(24, 1))
  tree:add(F.hp_digest, r(25, 1))
  local s = r:raw()
  local header = s:sub(33, n - 4)
  local whole
  if payload == 0 then
    whole = function() return crc(castagnoli, 0, header) end
  elseif rest and packet_size(rest) and rest:byte(1) == 2 and rest:sub(5, 12) == s:sub(5, 12) and rest:sub(3, 4) == s:sub(3, 4) then
    whole = function() -- the payload follows in one chunk, so its CRC is known
      local c = crc(castagnoli, 0, rest:sub(21, 20 + payload))
      return crc(castagnoli, crc(castagnoli, 0, header), string.char(rshift(c, 24), band(rshift(c, 16), 255), band(rshift(c, 8), 255), band(c, 255)))
    end
  end
  add_crc(tree, F.tlp_crc, F.tlp_crc_status, r(28, 4), whole)
  local digest = r(25, 1):uint() == 1
  local t = dissect_tlp(r(32, n - 36 - (digest and 4 or 0)), tree, false, n)
  if digest then tree:add(F.t_digest, r(n - 8, 4)) end
  add_crc(tree, F.crc, F.crc_status, r(n - 4, 4), function() return crc(castagnoli, crc(castagnoli, 0, header), s:sub(1, 32)) end)
  return t and t.text or "header"
end

add_packet[2] = function(r, tree, pinfo)
  local s = r:raw()
  tree:add(F.chunk_len, r(2, 2))
  add_seq(tree, r(4, 8), pinfo, r(12, 2):uint())
  tree:add(F.offset, r(12, 2))
  tree:add(F.payload_len, r(14, 2))
  add_crc(tree, F.crc, F.crc_status, r(16, 4), function() return crc(castagnoli, crc(castagnoli, 0, s:sub(21)), s:sub(1, 16)) end)
  tree:add(F.chunk, r(20))
  return string.format("%d bytes", r(2, 2):uint())
end

add_packet[3] = function(r, tree, pinfo)
  local s = r:raw()
  local payload, count, header = r(2, 2):uint(), r(26, 2):uint(), r(1, 1):uint() * 4
  local crcs = 28 + header
  local data = crcs + 4 + (payload > 0 and 4 * count or 0)
  tree:add(F.header_len, r(1, 1))
  tree:add(F.payload_len, r(2, 2))
  add_seq(tree, r(4, 8), pinfo, "run")
  tree:add(F.src_node, r(12, 4))
  tree:add(F.src_slot, r(16, 2))
  tree:add(F.dst_slot, r(18, 2))
  tree:add(F.dst_node, r(20, 4))
  tree:add(F.hp_path, r(24, 1))
  tree:add(F.run_count, r(26, 2))
  local t = dissect_tlp(r(28, header), tree, false, header)
  for i = 0, payload > 0 and count - 1 or -1 do
    local from = data + i * payload
    add_crc(tree, F.run_crc, F.run_crc_status, r(crcs + 4 * i, 4), function() return crc(castagnoli, 0, s:sub(from + 1, from + payload)) end)
  end
  add_crc(tree, F.crc, F.crc_status, r(data - 4, 4), function() return crc(castagnoli, crc(castagnoli, 0, s:sub(29, data - 4)), s:sub(1, 28)) end)
  if payload > 0 then tree:add(F.run_payload, r(data)) end
  return string.format("%d of %s", count, t and t.text or "run")
end

-- add_last shows the CRC at the end of a packet.
local function add_last(r, tree)
  local n = r:len()
  add_crc(tree, F.crc, F.crc_status, r(n - 4, 4), function() return crc(castagnoli, 0, r(0, n - 4):raw()) end)
end

local function add_range(tree, range, last, count)
  local first = last - (count - 1)
  tree:add(F.ack_range, range, first == last and tostring(last) or tostring(first) .. "-" .. tostring(last)):set_generated()
  return first
end

add_packet[0x10] = function(r, tree)
  local largest = r(8, 8):uint64()
  tree:add(F.ack_path, r(1, 1))
  tree:add(F.ack_more, r(2, 1))
  tree:add(F.ack_marked, r(3, 1))
  tree:add(F.ack_delay, r(4, 4))
  tree:add(F.ack_largest, r(8, 8))
  tree:add(F.ack_limit, r(16, 8))
  tree:add(F.ack_first, r(24, 4))
  local low = add_range(tree, r(24, 4), largest, UInt64(r(24, 4):uint()))
  for i = 0, r(2, 1):uint() - 1 do
    local at = 28 + 8 * i
    tree:add(F.ack_gap, r(at, 4))
    tree:add(F.ack_run, r(at + 4, 4))
    low = add_range(tree, r(at, 8), low - UInt64(r(at, 4):uint()) - 1, UInt64(r(at + 4, 4):uint()))
  end
  add_last(r, tree)
  return "ack " .. tostring(largest)
end

add_packet[0x11] = function(r, tree)
  add_last(r, tree)
  return "ping"
end

add_packet[0x12] = function(r, tree)
  tree:add(F.reason, r(2, 2))
  add_last(r, tree)
  return "close"
end

add_packet[0x20] = function(r, tree)
  tree:add(F.cipher, r(1, 1))
  tree:add(F.src_node, r(4, 4))
  tree:add(F.src_slot, r(8, 2))
  tree:add(F.dst_slot, r(10, 2))
  tree:add(F.dst_node, r(12, 4))
  tree:add(F.limit, r(16, 8))
  tree:add(F.echo, r(24, 8))
  add_last(r, tree)
  return "hello"
end

add_packet[0] = function(r, tree)
  tree:add(F.padding, r)
  return "padding"
end

-- add_body shows the packets of a clear body and returns their summaries.
local function add_body(body, tree, pinfo, cut)
  local at, about = 0, {}
  while at < body:len() do
    local r = body(at)
    local n = packet_size(r:raw())
    if not n then
      tree:add(dxpu, r, "Packet"):add_proto_expert_info(E[cut and "short" or "malformed"])
      break
    end
    local kind = r(0, 1):uint()
    local branch = tree:add(dxpu, r(0, n), "Packet: " .. kinds[kind])
    branch:add(F.kind, r(0, 1))
    local what = add_packet[kind](r(0, n), branch, pinfo, at + n < body:len() and body(at + n):raw() or nil)
    branch:append_text(", " .. what)
    about[#about + 1] = what
    at = at + n
  end
  return table.concat(about, " | ")
end

-- header_size returns version, type and size of the header that starts with byte b,
-- or nil if no datagram does. Version 1 has neither cookies nor datagrams of them.
local function header_size(b)
  local version, kind = rshift(b, 4), band(b, 15)
  if not datagram_types[kind] or version < 1 or version > 2 or kind == 6 and version == 1 then return nil end
  return version, kind, kind == 5 and 20 or version == 1 and 36 or 52
end

function dxpu.dissector(tvb, pinfo, tree)
  local size, captured = tvb:reported_len(), tvb:len()
  if captured < 20 then return 0 end
  local version, kind, head = header_size(tvb(0, 1):uint())
  if not version or captured < head then return 0 end
  pinfo.cols.protocol = "DxPU"
  tree = tree:add(dxpu, tvb(), "DxPU datagram, " .. datagram_types[kind])
  tree:add(F.version, tvb(0, 1))
  tree:add(F.type, tvb(0, 1))
  tree:add(F.key_phase, tvb(1, 1))
  tree:add(F.path, tvb(2, 1))
  tree:add(F.binding, tvb(4, 4))
  tree:add(F.epoch, tvb(8, 4))
  tree:add(F.number, tvb(12, 8))
  if kind ~= 5 then
    tree:add(F.initiator, tvb(20, 8))
    tree:add(F.responder, tvb(28, 8))
    if version > 1 then tree:add(F.cookie, tvb(36, 16)) end
  end
  local title = string.format("%s binding 0x%x path %d #%s", datagram_types[kind], tvb(4, 4):uint(), tvb(2, 1):uint(), tostring(tvb(12, 8):uint64()))
  pinfo.cols.info = title

  scope = tvb:raw(4, 8)
  local cut = captured < size
  local stop = cut and captured or size - 4
  local clear = kind == 5 and dxpu.prefs.body ~= 2 and stop > head
  if clear and dxpu.prefs.body == 0 then
    local s = tvb:raw(head, stop - head)
    clear = cut and packet_size(s .. string.rep("\0", 4200)) ~= nil and s:byte(1) ~= 0 or is_clear(s)
  end
  if kind == 6 then -- the header is all
    if size ~= head then tree:add_proto_expert_info(E.malformed) end
  elseif clear then
    pinfo.cols.info = title .. ": " .. add_body(tvb(head, stop - head), tree, pinfo, cut)
    if not cut then tree:add(F.check, tvb(stop, 4)) end
  elseif cut or size < head + 16 then
    if captured > head then tree:add(F.sealed, tvb(head)) end
    tree:add_proto_expert_info(E[cut and "short" or "malformed"])
  else
    if size > head + 16 then tree:add(F.sealed, tvb(head, size - head - 16)) end
    tree:add(F.tag, tvb(size - 16, 16))
    if kind == 5 then pinfo.cols.info = title .. ": sealed" end
  end
  return captured
end

-- The heuristic checks the 23 bits of a traffic datagram that have only one legal
-- value. A handshake datagram has a fixed size as well, by its version.
dxpu:register_heuristic("udp", function(tvb, pinfo, tree)
  if tvb:len() < 36 then return false end
  local version, kind, head = header_size(tvb(0, 1):uint())
  if not version or tvb(2, 1):uint() > 7 or tvb(3, 1):uint() ~= 0 then return false end
  local body = kind == 6 and 0 or version == 1 and 44 + 16 or 80 + 16
  if kind ~= 5 and (tvb(1, 1):uint() ~= 0 or tvb:reported_len() ~= head + body) then return false end
  dxpu.dissector(tvb, pinfo, tree)
  pinfo.conversation = dxpu
  return true
end)

local ports = nil
function dxpu.prefs_changed()
  local udp = DissectorTable.get("udp.port")
  if ports and ports ~= "" then udp:remove(ports, dxpu) end
  ports = dxpu.prefs.ports
  if ports ~= "" then udp:add(ports, dxpu) end
end
DissectorTable.get("udp.port"):add_for_decode_as(dxpu)

-- Records ------------------------------------------------------------------

local pending, request_of, completion_of = {}, {}, {}

function dxpu.init() seen, pending, request_of, completion_of = {}, {}, {}, {} end

-- match joins the last completion of a request with the request.
local function match(t, key, pinfo)
  if not pinfo.visited then
    if t.cpl then
      request_of[pinfo.number] = pending[key]
      if t.last and pending[key] then
        completion_of[pending[key].number] = pinfo.number
        pending[key] = nil
      end
    elseif not t.posted then
      pending[key] = { number = pinfo.number, time = pinfo.rel_ts }
    end
  end
  local request, completion = request_of[pinfo.number], completion_of[pinfo.number]
  if request then
    local d = pinfo.rel_ts - request.time
    t.tree:add(F.t_request, request.number):set_generated()
    t.tree:add(F.t_time, NSTime.new(math.floor(d), math.floor((d - math.floor(d)) * 1e9 + 0.5))):set_generated()
  elseif completion then
    t.tree:add(F.t_response, completion):set_generated()
  elseif t.cpl then
    t.tree:add_proto_expert_info(E.unanswered)
  end
end

function rec.dissector(tvb, pinfo, tree)
  if tvb:len() < 24 or tvb(0, 1):uint() ~= 1 then return 0 end
  local received = band(tvb(1, 1):uint(), 1)
  local from = string.format("%d/%d", tvb(12, 4):uint(), tvb(16, 2):uint())
  local to = string.format("%d/%d", tvb(20, 4):uint(), tvb(18, 2):uint())
  pinfo.cols.protocol, pinfo.cols.src, pinfo.cols.dst = "TLP", from, to
  local top = tree
  tree = tree:add(rec, tvb(0, 24), string.format("DxPU capture record, %s, %s to %s", received == 1 and "received" or "sent", from, to))
  tree:add(F.rec_version, tvb(0, 1))
  tree:add(F.rec_received, tvb(1, 1))
  tree:add(F.binding, tvb(4, 4))
  tree:add(F.epoch, tvb(8, 4))
  tree:add(F.src_node, tvb(12, 4))
  tree:add(F.src_slot, tvb(16, 2))
  tree:add(F.dst_slot, tvb(18, 2))
  tree:add(F.dst_node, tvb(20, 4))
  if tvb:reported_len() == 24 or tvb:len() == 24 then return 24 end
  local t = dissect_tlp(tvb(24), top, true, tvb:reported_len() - 24)
  if t then
    pinfo.cols.info = t.text
    local sent = t.cpl and 1 - received or received -- direction of the request
    match(t, table.concat({ tvb(4, 4):uint(), tvb(8, 4):uint(), sent, t.requester, t.tag }, " "), pinfo)
  end
  return tvb:len()
end

DissectorTable.get("wtap_encap"):add((wtap_encaps or wtap).USER0, rec)
