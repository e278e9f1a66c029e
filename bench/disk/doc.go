// Package disk puts the block store on disks that fail and that lose power, as
// a real one does not when it is asked to.
//
// An [FS] is a directory seen through FUSE, any of whose operations can be made
// to fail, or to write less than it was given. A [Recorder] is the disk under a
// real file system: it remembers every write and every flush, so that afterwards
// there is an image of what would have been left had the power gone at any
// moment, with the writes that were not flushed done, undone, or torn.
//
// Both take root, and /dev/fuse.
package disk
