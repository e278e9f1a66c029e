// Package packet is the wire of HDFS data transfer: packets, acks and the
// operations that open a stream (data transfer protocol version 28), and on
// top of them the client's side of a stream, [Writer] and [Reader].
//
// A packet is the same in both directions. Integers are big-endian, except
// inside the header, which is a protobuf message of fixed-size fields:
//
//	0       4       6                     6+HLEN
//	+-------+-------+---------------------+----------------+-----------------+
//	| PLEN  | HLEN  | HEADER              | SUMS           | DATA            |
//	| i32   | i16   | HLEN bytes          | 4 per chunk    | dataLen bytes   |
//	+-------+-------+---------------------+----------------+-----------------+
//	PLEN = 4 + len(SUMS) + len(DATA): it counts itself, but not HLEN and HEADER
//
//	HEADER, 25 bytes, or 27 when syncBlock is set:
//	+----+---------------+----+-------+----+------+----+---------+----+------+
//	| 09 | offsetInBlock | 11 | seqno | 18 | last | 25 | dataLen | 28 | sync |
//	| u8 | i64 le        | u8 | i64le | u8 | u8   | u8 | i32 le  | u8 | u8   |
//	+----+---------------+----+-------+----+------+----+---------+----+------+
//
// Chunks are counted from the first byte of the packet, so the last one may
// be short. A block ends with an empty packet that has last set. Seqno -1 is a
// heartbeat. After an hflush inside a chunk the next packet begins at that
// chunk's start again, so offsets may overlap; seqnos never repeat.
//
// Everything that is not a packet is a protobuf message after its length:
//
//	request   | version 28 | opcode | length  | OpWriteBlockProto, OpReadBlockProto  |
//	          | i16        | u8     | varint  | length bytes                         |
//	response  | length | BlockOpResponseProto |    and so PipelineAckProto,
//	          | varint | length bytes         |    ClientReadStatusProto
//
// A write: the client sends WRITE_BLOCK and reads a BlockOpResponse; then
// packets go one way and one PipelineAck for each comes back, in order. A read:
// READ_BLOCK, BlockOpResponse, then packets come back, and the client answers
// the last one with a ClientReadStatus.
//
// Lengths are checked against a limit before anything is allocated for them.
// Bytes that do not follow the format give a *[FormatError], *[VersionError]
// or *[OpcodeError].
package packet
