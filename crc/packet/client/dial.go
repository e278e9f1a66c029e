package client

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/blockpath/blockpath/crc/packet"
)

// An AddressError reports an address that is neither HOST:PORT nor unix:PATH,
// or not one that the use it was given for allows.
type AddressError struct {
	Address string
	Want    string
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("client: address %q: want %s", e.Address, e.Want)
}

// splitAddress returns the network and the address for package net.
func splitAddress(addr string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		if path == "" {
			return "", "", &AddressError{addr, "unix:PATH"}
		}
		return "unix", path, nil
	}
	if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
		return "", "", &AddressError{addr, "HOST:PORT or unix:PATH"}
	}
	return "tcp", addr, nil
}

// Dial connects to a datanode. TCP connections send small packets at once
// (TCP_NODELAY). A malformed address is an *[AddressError].
func Dial(ctx context.Context, addr string) (net.Conn, error) {
	network, address, err := splitAddress(addr)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	d.SetMultipathTCP(false)
	return d.DialContext(ctx, network, address)
}

// targets describes the nodes of a pipeline behind the first one.
func targets(ctx context.Context, addrs []string) ([]packet.DatanodeInfo, error) {
	infos := make([]packet.DatanodeInfo, len(addrs))
	for i, addr := range addrs {
		network, address, err := splitAddress(addr)
		if err != nil {
			return nil, err
		}
		if network != "tcp" {
			return nil, &AddressError{addr, "HOST:PORT behind the first node of a pipeline"}
		}
		host, port, _ := net.SplitHostPort(address)
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, &AddressError{addr, "a port of 1..65535"}
		}
		ip := host
		if net.ParseIP(host) == nil { // the protocol names nodes by their IP address
			ips, err := net.DefaultResolver.LookupHost(ctx, host)
			if err != nil {
				return nil, err
			}
			ip = ips[0]
		}
		infos[i] = packet.DatanodeInfo{IPAddr: ip, HostName: host, XferPort: uint32(n)}
	}
	return infos, nil
}
