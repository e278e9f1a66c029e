//go:build !purego

package stripedcounter

import "runtime"

//go:generate go -C ../gen run ./stripedcounter -pkg stripedcounter -out ../stripedcounter/add_amd64.s -stubs ../stripedcounter/add_amd64.go

// useRDPID says that the assembly may execute RDPID and that the number it
// gives is the CPU's. Linux promises the latter: RDPID reads the word from which
// the vDSO's getcpu takes the CPU in its low 12 bits. Neither x/sys/cpu nor
// cpuid knows the feature.
var useRDPID = (runtime.GOOS == "linux" || runtime.GOOS == "android") && hasRDPID()

// goroutineRows says that rows are chosen by goroutine, not by CPU.
func goroutineRows() bool { return !useRDPID }
