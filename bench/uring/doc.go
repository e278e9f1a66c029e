// Package uring measures when a ring is worth its while: the cost of the engine
// itself, reads and writes against plain system calls, syncs of many files, and
// whether the policy of the backend ever loses.
package uring
