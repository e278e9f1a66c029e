package main

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns the user and system time of this process.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// maxRSS returns the peak resident memory of this process in bytes.
func maxRSS() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	if runtime.GOOS == "darwin" { // bytes there, KiB elsewhere
		return int64(u.Maxrss)
	}
	return int64(u.Maxrss) << 10
}
