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
	inner, err := innerLoop(body)
	if err != nil || len(inner) != 2 || inner[0].addr != 0x40 {
		t.Errorf("innerLoop = %v, %v", inner, err)
	}
	if _, err := innerLoop(body[:3]); err == nil {
		t.Error("a loop where there is none")
	}
	if _, err := innerLoop(append(body, instruction{0x80, "addq\t$1, %rax"}, instruction{0x90, "jne\t0x80"})); err == nil {
		t.Error("two inner loops, and no word of it")
	}
}
