// Package iouring does file I/O for a block store on memory that may be handed
// to the kernel.
//
// An [Arena] holds that memory, a [Buffer] is a part of it, a [File] is an open
// file and a [Backend] moves bytes between the two.
package iouring
