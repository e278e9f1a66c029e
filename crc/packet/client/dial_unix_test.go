//go:build unix

package client

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// HDFS-4049: small packets waited for the ack of those before them.
func TestDialSendsAtOnce(t *testing.T) {
	n := startNode(t, "tcp")
	conn, err := Dial(testContext(t), n.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var value int
	if controlErr := raw.Control(func(fd uintptr) {
		value, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY)
	}); controlErr != nil || err != nil || value == 0 {
		t.Errorf("TCP_NODELAY is %d, %v, %v", value, err, controlErr)
	}
}
