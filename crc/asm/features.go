package asm

import "github.com/klauspost/cpuid/v2"

// Features returns the names of this CPU's features that kernels use or that
// decide between them.
func Features() []string {
	var names []string
	for _, f := range features {
		if cpuid.CPU.Supports(f) {
			names = append(names, f.String())
		}
	}
	return names
}
