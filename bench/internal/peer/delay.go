package peer

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// A Path is a proxy that passes every byte on after a delay, in both directions,
// and as many of them as come: a link of unbounded bandwidth and a long round
// trip.
type Path struct {
	Addr string

	l     net.Listener
	to    string
	delay time.Duration
	wg    sync.WaitGroup
}

// StartPath starts a path to an address. delay is that of one direction. Close
// must be called.
func StartPath(to string, delay time.Duration) (*Path, error) {
	l, err := Listen()
	if err != nil {
		return nil, err
	}
	p := &Path{Addr: l.Addr().String(), l: l, to: to, delay: delay}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Add(1)
			go func() {
				defer p.wg.Done()
				p.join(near)
			}()
		}
	}()
	return p, nil
}

// Close ends the path when its connections have ended.
func (p *Path) Close() error {
	err := p.l.Close()
	p.wg.Wait()
	return err
}

func (p *Path) join(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer far.Close()
	var wg sync.WaitGroup
	wg.Add(2)
	for _, c := range [][2]net.Conn{{near, far}, {far, near}} {
		go func() {
			defer wg.Done()
			p.pass(c[1], c[0])
			c[1].(*net.TCPConn).CloseWrite()
		}()
	}
	wg.Wait()
}

// A piece is bytes under way and when they arrive.
type piece struct {
	b  []byte
	at time.Time
}

// pieceLen is how much is read at once.
const pieceLen = 64 << 10

// pass moves bytes from one connection to another. What is under way is in
// memory, which is used again.
func (p *Path) pass(to, from net.Conn) {
	under := make(chan piece, 4096)
	free := make(chan []byte, 4096)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for x := range under {
			time.Sleep(time.Until(x.at))
			if _, err := to.Write(x.b); err != nil && !errors.Is(err, net.ErrClosed) {
				from.Close() // the reader then ends
			}
			free <- x.b[:cap(x.b)]
		}
	}()
	for {
		var b []byte
		select {
		case b = <-free:
		default:
			b = make([]byte, pieceLen)
		}
		n, err := from.Read(b)
		if n > 0 {
			under <- piece{b[:n], time.Now().Add(p.delay)}
		}
		if err != nil {
			if err != io.EOF {
				to.Close()
			}
			break
		}
	}
	close(under)
	<-done
}
