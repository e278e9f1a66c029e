package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/blockpath/blockpath/crc/packet"
)

// A servingProcess is the command, "blockpath serve".
type servingProcess struct {
	cmd  *exec.Cmd
	addr *net.TCPAddr
	log  bytes.Buffer // on standard error, such as the requests that it refuses
}

// startServe lets the command serve a directory, and waits until it listens.
func startServe(command, dir string) (*servingProcess, error) {
	p := &servingProcess{cmd: exec.Command(command, "serve", "--dir", dir, "--listen", "127.0.0.1:0")}
	p.cmd.Stderr = &p.log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "listening "); ok {
			if p.addr, err = net.ResolveTCPAddr("tcp", text); err == nil {
				return p, nil
			}
			break
		}
	}
	return nil, errors.Join(errors.New("blockpath serve does not listen"), err, p.stop())
}

// stop asks the command to end, which it must do with success.
func (p *servingProcess) stop() error {
	timer := time.AfterFunc(patience, func() { p.cmd.Process.Kill() })
	defer timer.Stop()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("blockpath serve: %w: %s", err, &p.log)
	}
	return nil
}

func (p *servingProcess) info() packet.DatanodeInfo {
	return packet.DatanodeInfo{IPAddr: p.addr.IP.String(), HostName: "localhost", UUID: "served-" + strconv.Itoa(p.addr.Port), XferPort: uint32(p.addr.Port)}
}
