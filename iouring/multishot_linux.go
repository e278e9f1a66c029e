package iouring

import (
	"context"
	"io"
	"sync"
)

// maxUntaken is how many completions of a multishot operation may lie about
// before it is cancelled.
const maxUntaken = 4096

// A Multishot is an operation that completes again and again: connections of
// [SQE.PrepMultishotAccept], data of [SQE.PrepRecvMultishot], events of
// [SQE.PrepPollMultishot].
type Multishot struct {
	engine *Engine
	op     Op

	mu     sync.Mutex
	got    []CQE
	ended  bool
	err    error
	full   bool
	signal chan struct{} // capacity 1
}

// Start begins a multishot operation. The error is that of Submit.
func (e *Engine) Start(s *SQE) (*Multishot, error) {
	m := &Multishot{engine: e, signal: make(chan struct{}, 1)}
	m.op.SQE, m.op.multi = *s, m
	if err := e.Submit(&m.op); err != nil {
		return nil, err
	}
	return m, nil
}

// deliver never waits: the ring must go on whatever the owner does.
func (m *Multishot) deliver(c CQE, err error) {
	m.mu.Lock()
	m.got = append(m.got, c)
	if !c.More() {
		m.ended, m.err = true, err
	}
	stop := !m.ended && !m.full && len(m.got) >= maxUntaken
	m.full = m.full || stop
	m.mu.Unlock()
	if stop {
		// Whoever has the ring looks at the list again before letting go.
		m.engine.enqueue([]*Op{{call: func() { m.engine.cancelNow(&m.op) }}})
	}
	select {
	case m.signal <- struct{}{}:
	default:
	}
}

// Next returns the next completion, waiting for it. What it holds is the
// caller's: a descriptor to close, a buffer to give back. The last one comes
// without [CQEMore]; after it the error is io.EOF, or ErrClosed if the engine
// was closed. An operation whose completions are not taken, 4096 of them, is
// cancelled; its last completion says ECANCELED. When ctx ends Next returns
// ctx.Err() and the operation goes on.
func (m *Multishot) Next(ctx context.Context) (CQE, error) {
	for {
		m.mu.Lock()
		if len(m.got) > 0 {
			c := m.got[0]
			m.got = m.got[1:]
			m.mu.Unlock()
			return c, nil
		}
		ended, err := m.ended, m.err
		m.mu.Unlock()
		if ended {
			if err == nil {
				err = io.EOF
			}
			return CQE{}, err
		}
		select {
		case <-m.signal:
		case <-ctx.Done():
			return CQE{}, ctx.Err()
		}
	}
}

// Cancel asks the kernel to end the operation. Completions go on coming until
// one without [CQEMore]: take them, they may hold descriptors or buffers.
func (m *Multishot) Cancel() { m.engine.cancel(&m.op) }
