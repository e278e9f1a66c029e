package iouring

import "unsafe"

// The kernel's interface, include/uapi/linux/io_uring.h. Exported constants are
// named as there, without the IORING_ and IOSQE_ prefixes.

// An Opcode is an operation of the ring.
type Opcode uint8

// Operations that the Prep methods of [SQE] make.
const (
	OpNop         Opcode = 0
	OpReadv       Opcode = 1
	OpWritev      Opcode = 2
	OpFsync       Opcode = 3
	OpReadFixed   Opcode = 4
	OpWriteFixed  Opcode = 5
	OpPollAdd     Opcode = 6
	OpPollRemove  Opcode = 7
	OpTimeout     Opcode = 11
	OpTimeoutRm   Opcode = 12
	OpAccept      Opcode = 13
	OpAsyncCancel Opcode = 14
	OpLinkTimeout Opcode = 15
	OpFallocate   Opcode = 17
	OpOpenat      Opcode = 18
	OpClose       Opcode = 19
	OpStatx       Opcode = 21
	OpRead        Opcode = 22
	OpWrite       Opcode = 23
	OpSend        Opcode = 26
	OpRecv        Opcode = 27
	OpSplice      Opcode = 30
	OpShutdown    Opcode = 34
	OpMsgRing     Opcode = 40
	OpSendZC      Opcode = 47
)

// SetupFlags change how a ring works, see io_uring_setup(2).
type SetupFlags uint32

const (
	SetupSQPoll       SetupFlags = 1 << 1
	setupSQAff        SetupFlags = 1 << 2
	setupCQSize       SetupFlags = 1 << 3
	setupClamp        SetupFlags = 1 << 4
	setupSubmitAll    SetupFlags = 1 << 7
	SetupCoopTaskrun  SetupFlags = 1 << 8
	SetupTaskrunFlag  SetupFlags = 1 << 9
	SetupSingleIssuer SetupFlags = 1 << 12
	SetupDeferTaskrun SetupFlags = 1 << 13
)

// Features are what a kernel can do, see io_uring_setup(2).
type Features uint32

const (
	FeatSingleMmap     Features = 1 << 0
	FeatNoDrop         Features = 1 << 1
	FeatSubmitStable   Features = 1 << 2
	FeatRWCurPos       Features = 1 << 3
	FeatCurPersonality Features = 1 << 4
	FeatFastPoll       Features = 1 << 5
	FeatPoll32Bits     Features = 1 << 6
	FeatSQPollNonfixed Features = 1 << 7
	FeatExtArg         Features = 1 << 8
	FeatNativeWorkers  Features = 1 << 9
	FeatRsrcTags       Features = 1 << 10
	FeatCQESkip        Features = 1 << 11
	FeatLinkedFile     Features = 1 << 12
)

// SQEFlags change how one operation is run, see io_uring_enter(2).
type SQEFlags uint8

const (
	SQEFixedFile    SQEFlags = 1 << 0 // the descriptor is an index into the registered files
	SQEIODrain      SQEFlags = 1 << 1 // starts when everything before it has ended
	SQEIOLink       SQEFlags = 1 << 2 // the next one starts when this one has ended well, see PrepFsync
	SQEIOHardlink   SQEFlags = 1 << 3 // the next one starts when this one has ended
	SQEAsync        SQEFlags = 1 << 4 // go to a kernel thread at once
	SQEBufferSelect SQEFlags = 1 << 5 // take a buffer from a group
	sqeCQESkip      SQEFlags = 1 << 6
)

// CQEFlags say more about a completion.
type CQEFlags uint32

const (
	CQEBuffer       CQEFlags = 1 << 0 // the upper 16 bits are the number of the buffer taken
	CQEMore         CQEFlags = 1 << 1 // the operation goes on, more completions follow
	CQESockNonempty CQEFlags = 1 << 2 // the socket has more to read
	CQENotif        CQEFlags = 1 << 3 // the buffer of a zero-copy send is free now

	cqeBufferShift = 16
)

const (
	enterGetEvents = 1 << 0
	enterSQWakeup  = 1 << 1
	enterSQWait    = 1 << 2
	enterExtArg    = 1 << 3

	sqNeedWakeup = 1 << 0
	sqCQOverflow = 1 << 1
	sqTaskrun    = 1 << 2

	registerBuffers        = 0
	unregisterBuffers      = 1
	registerProbe          = 8
	registerFiles2         = 13
	registerFilesUpdate    = 6
	unregisterFiles        = 3
	registerIOWQMaxWorkers = 19
	registerPbufRing       = 22
	unregisterPbufRing     = 23
	registerSparse         = 1 << 0
	opSupported            = 1 << 0
	offSQRing              = 0
	offSQEs                = 0x10000000
	fsyncDatasync          = 1 << 0
	pollAddMulti           = 1 << 0
	acceptMultishot        = 1 << 0
	recvMultishot          = 1 << 1
	asyncCancelAll         = 1 << 0
	asyncCancelFD          = 1 << 1
	sizeofCQE              = 16
	sizeofSQE              = 64
)

type sqOffsets struct {
	head, tail, mask, entries, flags, dropped, array, _ uint32
	_                                                   uint64
}

type cqOffsets struct {
	head, tail, mask, entries, overflow, cqes, flags, _ uint32
	_                                                   uint64
}

type ringParams struct {
	sqEntries, cqEntries      uint32
	flags                     SetupFlags
	sqThreadCPU, sqThreadIdle uint32
	features                  Features
	wqFd                      uint32
	_                         [3]uint32
	sq                        sqOffsets
	cq                        cqOffsets
}

// rawSQE is struct io_uring_sqe.
type rawSQE struct {
	opcode      Opcode
	flags       SQEFlags
	ioprio      uint16
	fd          int32
	off         uint64
	addr        uint64
	len         uint32
	opFlags     uint32
	userData    uint64
	bufIndex    uint16
	personality uint16
	spliceFdIn  int32
	addr3       uint64
	_           uint64
}

// rawCQE is struct io_uring_cqe.
type rawCQE struct {
	userData uint64
	res      int32
	flags    CQEFlags
}

type rsrcRegister struct {
	nr, flags  uint32
	_          uint64
	data, tags uint64
}

type filesUpdate struct {
	offset, _ uint32
	fds       uint64
}

type probeOp struct {
	op, _ uint8
	flags uint16
	_     uint32
}

type probe struct {
	lastOp, opsLen uint8
	_              uint16
	_              [3]uint32
	ops            [256]probeOp
}

type geteventsArg struct {
	sigmask   uint64
	sigmaskSz uint32
	_         uint32
	ts        uint64
}

// bufReg is struct io_uring_buf_reg.
type bufReg struct {
	ringAddr    uint64
	ringEntries uint32
	bgid        uint16
	_           uint16
	_           [3]uint64
}

// bufRingEntry is struct io_uring_buf; the tail of the ring lies in the last
// field of the first one.
type bufRingEntry struct {
	addr uint64
	len  uint32
	bid  uint16
	tail uint16
}

// The kernel's sizes, checked by the compiler.
var (
	_ [sizeofSQE]byte = [unsafe.Sizeof(rawSQE{})]byte{}
	_ [sizeofCQE]byte = [unsafe.Sizeof(rawCQE{})]byte{}
	_ [120]byte       = [unsafe.Sizeof(ringParams{})]byte{}
	_ [40]byte        = [unsafe.Sizeof(bufReg{})]byte{}
	_ [16]byte        = [unsafe.Sizeof(bufRingEntry{})]byte{}
	_ [32]byte        = [unsafe.Sizeof(rsrcRegister{})]byte{}
	_ [24]byte        = [unsafe.Sizeof(geteventsArg{})]byte{}
)
