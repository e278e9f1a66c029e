package main

import "testing"

func TestInnerLoop(t *testing.T) {
	body := []instruction{
		{0x10, "movq\t%rax, %rbx"},
		{0x20, "addq\t$1, %rax"}, // outer loop
		{0x30, "je\t0x70"},
		{0x40, "crc32q\t(%rcx), %rax"}, // inner loop
		{0x50, "jne\t0x40"},
		{0x60, "jne\t0x20"},
		{0x70, "retq"},
	}
	inner, err := amd64.innerLoop(body, 1)
	if err != nil || len(inner) != 2 || inner[0].addr != 0x40 {
		t.Errorf("innerLoop = %v, %v", inner, err)
	}
	if _, err := amd64.innerLoop(body[:3], 1); err == nil {
		t.Error("a loop where there is none")
	}
	if _, err := amd64.innerLoop(append(body, instruction{0x80, "addq\t$1, %rax"}, instruction{0x90, "jne\t0x80"}), 1); err == nil {
		t.Error("two inner loops, and no word of it")
	}
}

func TestInnerLoopARM(t *testing.T) {
	body := []instruction{
		{0x10, "tst\tx1, #0x3f"}, // rows
		{0x14, "b.eq\t0x20"},
		{0x18, "b\t0x10"},
		{0x20, "subs\tx1, x1, #0x10"},
		{0x24, "tbnz\tw3, #0x3, 0x20"},
		{0x28, "cbnz\tx2, 0x10"}, // outer loop
		{0x2c, "ret"},
	}
	inner, err := arm64.innerLoop(body, 2)
	if err != nil || len(inner) != 2 || inner[0].addr != 0x20 {
		t.Errorf("innerLoop = %v, %v", inner, err)
	}
	if _, err := arm64.innerLoop(body, 1); err == nil {
		t.Error("two inner loops taken for one")
	}
}
