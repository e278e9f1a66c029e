package stripedcounter

import (
	"strconv"
	"sync/atomic"
)

// A Counter is one 64-bit counter that many goroutines add to. Its zero value
// is zero and ready; it allocates its rows at the first Add. A Counter must not
// be copied after that. Counters that are updated together are better kept in
// one [Set].
type Counter struct {
	set atomic.Pointer[Set]
}

// Add adds d, which may be negative.
func (c *Counter) Add(d int64) {
	s := c.set.Load()
	if s == nil {
		s = c.rows()
	}
	s.Add(0, d)
}

func (c *Counter) rows() *Set {
	c.set.CompareAndSwap(nil, NewSet("value"))
	return c.set.Load()
}

// Load returns what was added, since the last Drain if there was one.
func (c *Counter) Load() int64 {
	if s := c.set.Load(); s != nil {
		return s.Load(0)
	}
	return 0
}

// Drain returns what Load returns and sets the counter to zero; every count is
// returned by exactly one Drain.
func (c *Counter) Drain() int64 {
	if s := c.set.Load(); s != nil {
		var buf [1]int64
		return s.Drain(buf[:0])[0]
	}
	return 0
}

// String returns the value in decimal. It makes a *Counter an [expvar.Var].
//
// [expvar.Var]: https://pkg.go.dev/expvar#Var
func (c *Counter) String() string { return strconv.FormatInt(c.Load(), 10) }
