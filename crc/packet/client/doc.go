// Package client moves files to and from datanodes: [Put] streams a file as
// blocks, [Get] brings a file or a range of it back and goes on with another
// replica when one fails. There is no name service behind it; what a file
// consists of is in a [Manifest], which the caller keeps.
//
// Addresses are HOST:PORT, or unix:PATH for a unix socket.
package client
