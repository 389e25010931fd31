// Package tlp encodes and decodes Transaction Layer Packets of PCI Express in
// non-flit mode, with their ECRC, splitting and JSON form.
//
// Numbers follow the PCI Express Base Specification (revision 6.0); section
// numbers in the comments refer to it. [Parse] is strict where the
// specification calls a packet malformed and keeps reserved bits, which
// receivers ignore and switches forward, so that every packet it accepts is
// encoded to the same bytes again.
package tlp
