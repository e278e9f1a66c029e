// Package stripedcounter counts without contention: statistics that many
// goroutines update for every operation, and that are read now and then.
//
// One shared atomic counter makes every core fetch the same cache line for
// every update, so adding cores makes the program slower. A [Set] keeps one row
// of cells for each CPU instead; an update goes to the row of the CPU that it
// runs on, and a read sums the rows. All counters of a set lie side by side in
// a row, so updates that belong together ([Set.Add2]) touch one cache line.
//
// There are three ways to count, from the most convenient to the cheapest:
//
//   - [Set.Add] and [Counter.Add], from anywhere;
//   - [Set.Local], a row owned by one stream or worker, which adds without a
//     locked instruction;
//   - a plain integer in the stream, added to a Set once per packet or buffer.
//     This is what blockpath's own streams do.
//
// An Add costs one to two times what an uncontended atomic costs, depending on
// the processor, and goes on costing that when all cores add. A program of one
// goroutine is better off with sync/atomic.
//
// # Semantics
//
// No count is ever lost or counted twice. A value that is read
//
//   - is exact when the adds have stopped, that is, when each of them
//     happened before the read;
//   - includes every add that happened before the read, the reader's own among
//     them;
//   - never decreases from read to read while only non-negative numbers are
//     added and nobody drains;
//   - is not of one instant: adds that run beside the read may be in it or not,
//     and of two counters the later update may be seen without the earlier.
//
// Sums wrap around as int64 does.
//
// There is no method that adds and returns the new value. The value is spread
// over the rows; to know it one must read them all while others add, so the
// number returned would not be unique, two callers could get the same one, and
// it would cost what a Load costs. Use an atomic.Int64 to hand out numbers.
//
// # Rows
//
// On linux/amd64 with the RDPID instruction the row is that of the CPU, and
// there is one row for every CPU number up to the highest that the process may
// run on, rounded up to a power of two, at most 64. A thread may be moved to
// another CPU between reading the number and adding, and CPUs may share rows,
// therefore the additions are locked and remain exact. Elsewhere, and with the
// purego tag, the row is chosen by a hash of the address of the goroutine's
// stack, over four times as many rows. Neither depends on GOMAXPROCS, which may
// change at any time.
package stripedcounter
