//go:build linux || darwin

// Package datanode stores blocks as an HDFS datanode does and serves them by
// HDFS's data transfer protocol.
//
// # On disk
//
// A [Store] keeps its blocks in one or more directories, in the layout of HDFS
// (layout version -57):
//
//	<dir>/in_use.lock                       locked while the store is open
//	<dir>/current/<pool>/current/rbw/       replicas being written
//	          blk_<id>                      the data
//	          blk_<id>_<stamp>.meta         header and one checksum per chunk, see MetaHeader
//	<dir>/current/<pool>/current/finalized/subdir<id>>16&31>/subdir<id>>8&31>/
//	                                        complete replicas, named alike
//	<dir>/current/<pool>/tmp/               copies from other datanodes, incomplete
//
// A block is written strictly from its start to its end by one [BlockWriter]
// and read by any number of [BlockReader]s, also while it is being written: they
// see the bytes that are acknowledged.
//
// # What is promised
//
// A packet is acknowledged only after its data and its checksums have been
// written by completed system calls, so killing the process loses nothing that
// was acknowledged. A packet with the sync flag is acknowledged only after both
// files, and the directory the first time, are on stable storage, so a power cut
// does not lose it either. Nothing is written that did not verify, and after an
// error the files are cut back to what was acknowledged.
//
// [OpenStore] recovers what a crash has left: of a replica that was being written
// it keeps the longest prefix in which every checksum is right, and so of a
// finalized one that had not got to the disk whole. Nothing is thrown away: what
// is cut off although there are right checksums in it, and what makes no replica,
// stays beside it under a name with .lost. To make that prefix hold what was
// promised, data is written before the checksums that cover it, and before a
// checksum on stable storage is overwritten, that of a last chunk that has grown,
// the chunk's data is made durable.
package datanode
