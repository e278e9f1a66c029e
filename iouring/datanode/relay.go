//go:build linux || darwin

package datanode

// A mark is what there is to know of a block when a packet has been accepted.
type mark struct {
	end     int64
	lastSum uint32 // of the chunk that ends there, if it is partial
}

// relay makes the writer take packets without verifying them: its node passes
// them on to another one, which does. Until that has accepted them, readers do
// not see them, and an end of the writer cuts them off.
func (w *BlockWriter) relay() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.relaying = true
}

// mark notes where the block ends now.
func (w *BlockWriter) mark() {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	w.r.marks = append(w.r.marks, mark{w.end, w.tailSum})
}

// publish makes visible what has been written and the next node has accepted:
// the bytes up to end.
func (w *BlockWriter) publish(end int64) {
	r := w.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.marks) > 0 && r.marks[0].end <= end {
		r.length, r.lastSum = r.marks[0].end, r.marks[0].lastSum
		r.marks = r.marks[1:]
	}
}
