//go:build linux

#include "textflag.h"

// func start()
TEXT ·start(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	CALL ·guest(SB)
	INT $3

// func startPC() uintptr
TEXT ·startPC(SB), NOSPLIT, $0-8
	LEAQ ·start(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// func out(port uint16, b byte)
TEXT ·out(SB), NOSPLIT, $0-3
	MOVW port+0(FP), DX
	MOVB b+2(FP), AX
	BYTE $0xEE // OUT DX, AL
	RET
