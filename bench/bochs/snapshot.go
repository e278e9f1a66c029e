//go:build linux && amd64

package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"unsafe"
)

//go:embed image.asm
var imageSource []byte

const (
	page      = 4 << 10
	loadAddr  = 1 << 20   // where the payload lies in the guest's memory
	memoryMiB = 256       // of the guest
	batch     = 64 << 10  // the unit in which image.asm loads
	stackTop  = 512 << 10 // in the memory that a BIOS leaves alone
)

// thread is what Go code wants to find through FS: a g whose stack never needs
// to grow, since its guard is zero.
var thread struct {
	g   [1024]byte
	ptr *[1024]byte
	end byte // FS points here
}

// fsBase returns what FS has to hold: linux/amd64 keeps g eight bytes below it.
func fsBase() uint64 {
	thread.ptr = &thread.g
	return uint64(uintptr(unsafe.Pointer(&thread.end)))
}

// A region is a readable part of the process's memory.
type region struct {
	start, end uint64
	writable   bool
}

// regions lists what the guest needs: the program, its variables, its heap, and
// what it mapped itself. Memory that the process cannot touch is not among them.
func regions() ([]region, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	var all []region
	for line := range strings.Lines(string(maps)) {
		var r region
		var mode, offset, device, inode, name string
		fmt.Sscanf(line, "%x-%x %s %s %s %s %s", &r.start, &r.end, &mode, &offset, &device, &inode, &name)
		if len(mode) < 2 {
			return nil, fmt.Errorf("/proc/self/maps has the line %q", line)
		}
		if mode[0] != 'r' || strings.HasPrefix(name, "[v") || name == "[stack]" {
			continue
		}
		r.writable = mode[1] == 'w'
		all = append(all, r)
	}
	return all, nil
}

// A payload is the guest's memory from loadAddr on.
type payload []byte

// add appends a page and returns its address.
func (p *payload) add(content []byte) uint64 {
	addr := loadAddr + uint64(len(*p))
	*p = append(*p, content[:page]...)
	return addr
}

// mapPage enters a page into the tables whose root is at the address root.
func (p *payload) mapPage(root, virtual, physical uint64, writable bool) {
	const present, write, frame = 1, 2, 1<<52 - page
	table := root
	for shift := 39; ; shift -= 9 {
		at := table - loadAddr + virtual>>shift&511*8
		if shift == 12 {
			entry := physical | present
			if writable {
				entry |= write
			}
			binary.LittleEndian.PutUint64((*p)[at:], entry)
			return
		}
		entry := binary.LittleEndian.Uint64((*p)[at:])
		if entry == 0 {
			entry = p.add(make([]byte, page)) | present | write
			binary.LittleEndian.PutUint64((*p)[at:], entry)
		}
		table = entry & frame
	}
}

// snapshot returns a payload that continues this process in start.
func snapshot() (payload, error) {
	// A collection in progress would leave write barriers on.
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	fs := fsBase()
	all, err := regions()
	if err != nil {
		return nil, err
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	var p payload
	p.add(make([]byte, page))
	root := p.add(make([]byte, page))
	for addr := uint64(0); addr < loadAddr; addr += page {
		p.mapPage(root, addr, addr, true) // image.asm and the stack
	}
	content := make([]byte, page)
	for _, r := range all {
		for addr := r.start; addr < r.end; addr += page {
			if _, err := mem.ReadAt(content, int64(addr)); err != nil {
				return nil, fmt.Errorf("reading %#x: %w", addr, err)
			}
			p.mapPage(root, addr, p.add(content), r.writable)
		}
	}
	if len(p) > memoryMiB<<20-2*loadAddr {
		return nil, fmt.Errorf("the process has %d MiB, more than the emulated machine", len(p)>>20)
	}
	for i, word := range []uint64{root, uint64(startPC()), stackTop, fs} {
		binary.LittleEndian.PutUint64(p[8*i:], word)
	}
	return p, nil
}

// boot runs the payload under bochs and returns what it wrote to port E9.
func boot(ctx context.Context, dir string, p payload) (string, error) {
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(file("image.asm"), imageSource, 0o666); err != nil {
		return "", err
	}
	batches := (len(p) + batch - 1) / batch
	nasm := exec.CommandContext(ctx, "nasm", "-f", "bin", "-o", file("image"), file("image.asm"),
		fmt.Sprintf("-DLOAD=%#x", loadAddr), fmt.Sprintf("-DBATCHES=%d", batches))
	if out, err := nasm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", nasm, err, out)
	}
	image, err := os.ReadFile(file("image"))
	if err != nil {
		return "", err
	}
	const heads, sectors = 16, 63
	const cylinder = heads * sectors * 512
	cylinders := (len(image)+batches*batch)/cylinder + 1
	image = append(image, p...)
	image = append(image, make([]byte, cylinders*cylinder-len(image))...)
	if err := os.WriteFile(file("image"), image, 0o666); err != nil {
		return "", err
	}
	config := fmt.Sprintf(`display_library: rfb, options="timeout=0"
cpu: model=%s, count=1, ips=50000000, reset_on_triple_fault=0
memory: guest=%d, host=%d
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=disk, path=%s, mode=flat, cylinders=%d, heads=%d, spt=%d
boot: disk
log: %s
panic: action=fatal
error: action=report
clock: sync=none
speaker: enabled=0
sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy
port_e9_hack: enabled=1
`, model, memoryMiB, memoryMiB, file("image"), cylinders, heads, sectors, file("log"))
	if err := os.WriteFile(file("config"), []byte(config), 0o666); err != nil {
		return "", err
	}
	// Debian's bochs has the debugger, which waits for "continue".
	if err := os.WriteFile(file("debugger"), []byte("c\n"), 0o666); err != nil {
		return "", err
	}
	out, runErr := exec.CommandContext(ctx, "bochs", "-q", "-f", file("config"), "-rc", file("debugger")).Output()
	_, out, ok := bytes.Cut(out, []byte("\nBEGIN\n"))
	if !ok {
		log, _ := os.ReadFile(file("log"))
		lines := bytes.SplitAfter(log, []byte("\n"))
		return "", errors.Join(errors.New("the image did not start"), runErr,
			fmt.Errorf("the emulator's log ends with\n%s", bytes.Join(lines[max(0, len(lines)-20):], nil)))
	}
	return string(out), nil
}

// explain turns the words that image.asm prints of a fault into text. The guest
// has this process's addresses.
func explain(fault string) string {
	words := strings.Fields(fault)
	if len(words) == 0 {
		return "fault"
	}
	text := "fault, CR2 " + words[0] + ", stack:"
	for _, word := range words[1:] {
		text += " " + word
		if pc, err := strconv.ParseUint(word, 16, 64); err == nil {
			if f := runtime.FuncForPC(uintptr(pc)); f != nil {
				text += fmt.Sprintf(" (%s+%#x)", f.Name(), uintptr(pc)-f.Entry())
			}
		}
	}
	return text
}
