package iouring_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"

	"github.com/blockpath/blockpath/iouring"
	"golang.org/x/sys/unix"
)

// Copy a file with whatever the system has, 1 MiB at a time.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := os.WriteFile(from, make([]byte, 3_000_000), 0o600); err != nil {
		log.Fatal(err)
	}

	n, err := copyFile(context.Background(), to, from)
	fmt.Println(n, err)
	// Output: 3000000 <nil>
}

func copyFile(ctx context.Context, to, from string) (n int64, err error) {
	b, err := iouring.Open(iouring.Config{})
	if err != nil {
		return 0, err
	}
	defer b.Close()
	arena, err := iouring.NewArena(iouring.ArenaConfig{})
	if err != nil {
		return 0, err
	}
	defer arena.Close()

	src, err := iouring.OpenFile(from, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	defer src.Close()
	dst, err := iouring.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()

	buf, err := arena.Get(ctx, 1<<20)
	if err != nil {
		return 0, err
	}
	defer buf.Release()
	for {
		k, err := b.ReadAt(ctx, src, buf, n)
		if err != nil && err != io.EOF {
			return n, err
		}
		if err := b.WriteAt(ctx, dst, []iouring.Buffer{buf.Slice(0, k)}, n); err != nil {
			return n, err
		}
		n += int64(k)
		if err == io.EOF {
			return n, b.Datasync(ctx, dst)
		}
	}
}

// Read many places of a file with one system call.
func ExampleEngine_Submit() {
	e, err := iouring.NewEngine(iouring.EngineConfig{})
	if err != nil {
		fmt.Println("no ring here")
		return
	}
	defer e.Close()
	arena, err := iouring.NewArena(iouring.ArenaConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer arena.Close()
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()

	ctx := context.Background()
	var ops [16]iouring.Op // reusable; nothing is allocated per read
	var batch []*iouring.Op
	var bufs []iouring.Buffer
	for i := range ops {
		buf, err := arena.Get(ctx, 4096)
		if err != nil {
			log.Fatal(err)
		}
		bufs = append(bufs, buf)
		ops[i].PrepRead(int(f.Fd()), buf, int64(i)*8192)
		batch = append(batch, &ops[i])
	}
	if err := e.Submit(batch...); err != nil {
		log.Fatal(err)
	}
	total := 0
	for _, op := range batch {
		n, err := e.Wait(ctx, op)
		if err != nil {
			log.Fatal(err)
		}
		total += n
	}
	fmt.Printf("%q... and %d bytes\n", bufs[0].Bytes()[1:4], total)
	for _, buf := range bufs {
		buf.Release()
	}
}

// An echo server: one operation accepts all connections, one for each connection
// receives into buffers that the kernel picks.
func ExampleEngine_Start() {
	e, err := iouring.NewEngine(iouring.EngineConfig{})
	if err != nil {
		fmt.Println("no ring here")
		return
	}
	defer e.Close()
	arena, err := iouring.NewArena(iouring.ArenaConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer arena.Close()
	ctx := context.Background()
	group, err := e.NewBufRing(ctx, arena, 0, 64, 4096)
	if err != nil {
		log.Fatal(err)
	}
	defer group.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	served := make(chan error, 1)
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		log.Fatal(err)
	}
	var accept *iouring.Multishot
	var startErr error
	err = raw.Control(func(fd uintptr) {
		var s iouring.SQE
		s.PrepMultishotAccept(int(fd), 0)
		accept, startErr = e.Start(&s)
	})
	if err = errors.Join(err, startErr); err != nil {
		log.Fatal(err)
	}
	go func() {
		for {
			c, err := accept.Next(ctx)
			if err != nil || c.Err() != nil {
				return // cancelled
			}
			go func() { served <- echo(ctx, e, group, int(c.Res)) }()
		}
	}()

	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprint(conn, "hello")
	conn.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(conn)
	fmt.Println(string(answer), err)
	conn.Close()
	accept.Cancel()
	fmt.Println(<-served)
}

func echo(ctx context.Context, e *iouring.Engine, group *iouring.BufRing, fd int) error {
	defer unix.Close(fd)
	for {
		var s iouring.SQE
		s.PrepRecvMultishot(fd, group.Group(), 0)
		recv, err := e.Start(&s)
		if err != nil {
			return err
		}
		for {
			c, err := recv.Next(ctx)
			if err == io.EOF {
				break // the group was empty for a moment: start again
			}
			if err != nil {
				return err
			}
			if c.Err() == unix.ENOBUFS {
				continue
			}
			if c.Err() != nil {
				return c.Err()
			}
			if c.Res == 0 {
				return nil // end of the stream
			}
			buf, err := group.Buffer(c)
			if err != nil {
				return err
			}
			for rest := buf; rest.Len() > 0; {
				var send iouring.Op
				send.PrepSend(fd, rest, unix.MSG_NOSIGNAL)
				n, err := e.Do(ctx, &send)
				if err != nil {
					return err
				}
				rest = rest.Slice(n, rest.Len())
			}
			if err := group.Recycle(c); err != nil {
				return err
			}
		}
	}
}

// A ring by itself: write, sync and read in one system call, in this order.
func ExampleRing() {
	r, err := iouring.NewRing(iouring.RingConfig{Entries: 8})
	if err != nil {
		fmt.Println("no ring here")
		return
	}
	defer r.Close()
	arena, err := iouring.NewArena(iouring.ArenaConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer arena.Close()
	f, err := os.CreateTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	buf, err := arena.Get(context.Background(), 5)
	if err != nil {
		log.Fatal(err)
	}
	defer buf.Release()
	copy(buf.Bytes(), "hello")

	fd := int(f.Fd())
	var s iouring.SQE
	for step := range uint64(3) {
		s.UserData = step
		switch step {
		case 0:
			s.PrepWrite(fd, buf, 0)
		case 1:
			s.PrepFsync(fd, true)
		case 2:
			s.PrepRead(fd, buf, 0)
		}
		if step < 2 {
			s.SetFlags(iouring.SQEIOLink)
		}
		if _, err := r.Push(&s); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := r.SubmitAndWait(3); err != nil {
		log.Fatal(err)
	}
	for range 3 {
		c, err := r.WaitCQE()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(c.UserData, c.Res, c.Err())
	}
}
