// Package tlp encodes and decodes Transaction Layer Packets of PCI Express in
// non-flit mode, with their ECRC, splitting and JSON form.
//
// Numbers follow the PCI Express Base Specification (revision 6.0); section
// numbers in the comments refer to it. [Parse] refuses every packet that the
// specification calls malformed. It keeps reserved bits, which receivers ignore
// and switches forward: [Packet.Append] encodes every packet that Parse accepts
// to the same bytes.
package tlp
