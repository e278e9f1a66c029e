; A boot image that continues a snapshot of a Linux process on the bare machine,
; see snapshot.go. It wants from the command line:
;   LOAD     physical address of the payload, which follows this file on the disk
;   BATCHES  length of the payload in batches of 64 KiB
; The payload begins with the words: 0 physical address of the page tables, 8
; address to jump to, 16 stack pointer, 24 base of FS.
; A fault prints FAULT, CR2 and the top of the stack as hexadecimal words to
; port E9.

BATCH	equ 128			; sectors read by one command
PML4	equ 0x1000
IDT	equ 0x5000

	org 0x7c00
bits 16
	cli
	xor ax, ax
	mov ds, ax
	mov es, ax
	mov ss, ax
	mov sp, 0x7c00
	cld
	in al, 0x92		; gate A20
	or al, 2
	out 0x92, al
	mov edi, PML4		; map the first GiB onto itself in pages of 2 MiB
	xor eax, eax
	mov ecx, 0x3000/4
	rep stosd
	mov dword [PML4], PML4+0x1003
	mov dword [PML4+0x1000], PML4+0x2003
	mov di, PML4+0x2000
	mov eax, 0x83
	mov cx, 512
.map:	mov [di], eax
	add di, 8
	add eax, 2<<20
	loop .map
	mov eax, cr4		; PAE, OSFXSR, OSXMMEXCPT, OSXSAVE
	or eax, 1<<5 | 1<<9 | 1<<10 | 1<<18
	mov cr4, eax
	mov eax, PML4
	mov cr3, eax
	mov ecx, 0xc0000080	; EFER.LME
	rdmsr
	or eax, 1<<8
	wrmsr
	lgdt [gdtr]
	mov eax, cr0		; not EM; MP, PE, PG
	and eax, ~4
	or eax, 0x80000003
	mov cr0, eax
	jmp 8:wide
bits 64
wide:	mov ax, 16
	mov ds, ax
	mov es, ax
	mov ss, ax
	xor ecx, ecx		; XCR0: x87, SSE, AVX, opmask, ZMM
	xor edx, edx
	mov eax, 0xe7
	xsetbv
	mov edi, 0x7e00		; the rest of this file, then the payload
	mov ebx, 1
	mov ebp, (end-rest)/512
	call read
	mov edi, LOAD
	mov r15d, BATCHES
.load:	mov ebp, BATCH
	call read
	dec r15d
	jnz .load
	jmp rest

; read reads ebp sectors from sector ebx of the first disk to rdi, and advances.
read:	mov edx, 0x1f7
.busy:	in al, dx
	test al, 0x80
	jnz .busy
	mov edx, 0x1f2
	mov eax, ebp
	out dx, al
	mov eax, ebx
	mov ecx, 3
.lba:	inc edx
	out dx, al
	shr eax, 8
	loop .lba
	inc edx
	or al, 0xe0
	out dx, al
	inc edx
	mov al, 0x20		; read with retry
	out dx, al
	add ebx, ebp
.data:	mov edx, 0x1f7
.drq:	in al, dx
	test al, 8
	jz .drq
	mov edx, 0x1f0
	mov ecx, 256
	rep insw
	dec ebp
	jnz .data
	ret

	align 8
gdt:	dq 0, 0x00209a0000000000, 0x0000920000000000
gdtr:	dw 23
	dd gdt
	times 510-($-$$) db 0
	dw 0xaa55

rest:	mov edi, IDT		; every fault to one handler
	mov ecx, 32
.gate:	mov dword [rdi], fault + (8<<16)
	mov dword [rdi+4], 0x8e00
	mov qword [rdi+8], 0
	add edi, 16
	loop .gate
	lidt [idtr]
	mov rax, [LOAD+24]
	mov rdx, rax
	shr rdx, 32
	mov ecx, 0xc0000100	; FS.base
	wrmsr
	mov rsp, [LOAD+16]
	mov rbx, [LOAD+8]
	mov rax, [LOAD]
	mov cr3, rax
	jmp rbx

fault:	mov esi, failed
	call text
	mov rax, cr2
	call number
	mov ebx, 6
	mov rdi, rsp
.top:	mov rax, [rdi]
	call number
	add rdi, 8
	dec ebx
	jnz .top
	mov al, 10
	out 0xe9, al
	mov dx, 0x8900		; ends the emulator
	mov esi, poweroff
.off:	lodsb
	out dx, al
	test al, al
	jnz .off
	hlt

text:	lodsb
	test al, al
	jz .end
	out 0xe9, al
	jmp text
.end:	ret

number:	call hex
	mov al, ' '
	out 0xe9, al
	ret

hex:	mov rdx, rax
	mov ecx, 16
.digit:	rol rdx, 4
	mov eax, edx
	and eax, 15
	mov al, [digits+rax]
	out 0xe9, al
	loop .digit
	ret

digits:	db '0123456789abcdef'
failed:	db 'FAULT ', 0
poweroff: db 'Shutdown', 0
	align 8
idtr:	dw 32*16-1
	dq IDT
	align 512, db 0
end:
