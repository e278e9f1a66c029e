//go:build linux && amd64

// Command bochs runs the kernels of crc/asm that this machine may not have on
// an emulated one that has AVX-512 and VPCLMULQDQ:
//
//	go -C bench run ./bochs
//
// It prepares thousands of calls with their results, takes a snapshot of its
// own memory, and continues the snapshot on the bare machine of bochs, which
// makes the calls and compares. Buffers end and begin at pages that fault. The
// code that runs is the code that ships, down to the linked bytes: the Go
// methods of asm.Kernel as well as the assembly. Wants nasm and bochs.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"
)

// model is the CPU of bochs that has all that a kernel needs.
const model = "tigerlake"

var vectors []vector

// guest is what the bare machine runs: a dot before every vector, the number of
// each that fails, and END.
func guest() {
	write("\nBEGIN\n")
	for i := range vectors {
		write(".")
		if !vectors[i].run() {
			write("\nBAD ")
			for d := 1_000_000; d > 0; d /= 10 {
				out(debugPort, byte('0'+i/d%10))
			}
			write("\n")
		}
	}
	write("\nEND\n")
	for _, b := range []byte("Shutdown") {
		out(powerPort, b)
	}
}

// bochs prints what is written to debugPort, and ends when powerPort gets the
// word Shutdown.
const (
	debugPort = 0xe9
	powerPort = 0x8900
)

func write(s string) {
	for i := range len(s) {
		out(debugPort, s[i])
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bochs:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var err error
	if vectors, err = makeVectors(); err != nil {
		return err
	}
	calls := map[string]int{}
	var names []string
	for i := range vectors {
		v := &vectors[i]
		name := v.kernel.Name()
		if calls[name]++; calls[name] == 1 {
			names = append(names, name)
		}
		if v.kernel.Available() && !v.run() {
			return fmt.Errorf("this machine: vector %d fails: %v", i, v)
		}
	}
	for _, name := range names {
		fmt.Printf("%s: %d calls\n", name, calls[name])
	}
	dir, err := os.MkdirTemp("", "bochs")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p, err := snapshot()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := emulate(ctx, dir, p); err != nil {
		return fmt.Errorf("%s: %w", model, err)
	}
	fmt.Printf("%s: %d calls agree, %.1f s\n", model, len(vectors), time.Since(begin).Seconds())
	return nil
}

// emulate runs the snapshot. It returns an error unless every
// vector was run and passed.
func emulate(ctx context.Context, dir string, p payload) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	out, err := boot(ctx, dir, p)
	if err != nil {
		return err
	}
	out, fault, faulted := strings.Cut(out, "FAULT ")
	out, _, ended := strings.Cut(out, "\nEND\n")
	ran := strings.Count(out, ".")
	if faulted {
		fault, _, _ = strings.Cut(fault, "\n")
		return fmt.Errorf("vector %d: %v: %s", ran-1, &vectors[ran-1], explain(fault))
	}
	var failed []string
	for line := range strings.Lines(out) {
		if number, ok := strings.CutPrefix(strings.TrimSpace(line), "BAD "); ok {
			i, err := strconv.Atoi(number)
			if err != nil || i >= len(vectors) {
				return fmt.Errorf("the guest wrote %q", line)
			}
			failed = append(failed, fmt.Sprintf("vector %d: %v", i, &vectors[i]))
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d vectors fail:\n%s", len(failed), strings.Join(failed[:min(len(failed), 50)], "\n"))
	}
	if !ended || ran != len(vectors) {
		return fmt.Errorf("%d of %d vectors ran", ran, len(vectors))
	}
	return nil
}
