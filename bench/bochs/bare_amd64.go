//go:build linux

package main

// start runs guest on the bare machine. It wants an aligned stack, FS set up as
// fsBase says, and the vector state enabled.
func start()

// startPC returns the address of start.
func startPC() uintptr

// out writes b to an I/O port.
func out(port uint16, b byte)
