package arm64

import (
	"fmt"
	"strings"

	"github.com/mmcloughlin/avo/operand"
)

// A kind says what an operand is. Its byte is its letter in the table of forms.
type kind byte

const (
	invalid     kind = '?'
	general     kind = 'G' // general register
	generalPair kind = 'P' // two general registers
	immediate   kind = 'I'
	memory      kind = 'M' // at an address in a register
	frame       kind = 'F' // argument or result
	address     kind = 'A' // of a constant table
	label       kind = 'L'
	hint        kind = 'H' // prefetch hint
	whole       kind = 'q' // vector register in a load or store
	wholePair   kind = 'p' // two of them
	bytes16     kind = 'b' // vector views
	word1       kind = 'd'
	words2      kind = 'D'
	words4      kind = 's'
	product     kind = 'Q'
	lane        kind = 'e'
	table       kind = 't' // list of one vector register
)

var kindNames = map[kind]string{
	invalid: "a malformed operand", general: "a general register", generalPair: "a pair of general registers",
	immediate: "an immediate", memory: "memory", frame: "an argument", address: "a table's address",
	label: "a label", hint: "a prefetch hint", whole: "a whole vector register",
	wholePair: "a pair of vector registers", bytes16: "a .B16 view", word1: "a .D1 view", words2: "a .D2 view",
	words4: "a .S4 view", product: "a .Q1 view", lane: "a lane", table: "a register list",
}

func kindOf(op operand.Op) kind {
	switch op := op.(type) {
	case Reg:
		return op.view
	case group:
		for _, r := range op.regs {
			if op.kind == memory && r.view != general {
				return invalid
			}
		}
		return op.kind
	case text:
		return op.kind
	case operand.LabelRef:
		return label
	}
	return invalid
}

// forms lists, for each opcode, the operand lists it takes. An operand is two
// letters: r read, w written or u updated, then its kind.
var forms = map[string][]string{
	"MOVD":  {"rG wG", "rI wG", "rA wG", "rF wG", "rM wG", "rG wM", "rG wF"},
	"MOVW":  {"rG wM", "rG wF"},
	"MOVWU": {"rM wG", "rF wG", "rG wG"},
	"MOVHU": {"rM wG"},
	"MOVBU": {"rM wG"},
	"MOVH":  {"rG wM"},
	"MOVB":  {"rG wM"},
	"LDP":   {"rM wP"},
	"STP":   {"rP wM"},
	"FMOVQ": {"rM wq", "rq wM"},
	"FLDPQ": {"rM wp"},
	"FSTPQ": {"rp wM"},
	"VMOV":  {"re wG", "rG ue", "rG wD", "rb wb"},
	"VMOVI": {"rI wb"},
	"PRFM":  {"rM rH"},

	"ADD":  {"rG uG", "rI uG", "rG rG wG", "rI rG wG"},
	"SUB":  {"rG uG", "rI uG", "rG rG wG", "rI rG wG"},
	"SUBS": {"rG uG", "rI uG", "rG rG wG", "rI rG wG"},
	"AND":  {"rG uG", "rI uG", "rG rG wG", "rI rG wG"},
	"LSL":  {"rG uG", "rI uG", "rG rG wG", "rI rG wG"},
	"LSR":  {"rG uG", "rI uG", "rG rG wG", "rI rG wG"},
	"MUL":  {"rG uG", "rG rG wG"},
	"EORW": {"rG uG", "rG rG wG"},
	"MVNW": {"rG wG"},
	"REVW": {"rG wG"},
	"CMP":  {"rG rG", "rI rG"},
	"TST":  {"rG rG", "rI rG"},

	"B":    {"rL"},
	"BEQ":  {"rL"},
	"BNE":  {"rL"},
	"BHS":  {"rL"},
	"BLO":  {"rL"},
	"CBZ":  {"rG rL"},
	"CBNZ": {"rG rL"},
	"TBZ":  {"rI rG rL"},
	"RET":  {""},

	"CRC32B":  {"rG uG"},
	"CRC32H":  {"rG uG"},
	"CRC32W":  {"rG uG"},
	"CRC32X":  {"rG uG"},
	"CRC32CB": {"rG uG"},
	"CRC32CH": {"rG uG"},
	"CRC32CW": {"rG uG"},
	"CRC32CX": {"rG uG"},

	"VPMULL":  {"rd rd wQ"},
	"VPMULL2": {"rD rD wQ"},
	"VEOR":    {"rb rb wb"},
	"VEOR3":   {"rb rb rb wb"},
	"VTBL":    {"rb rt wb"},
	"VREV32":  {"rb wb"},
	"VUZP1":   {"rs rs ws"},
	"VZIP2":   {"rD rD wD"},
}

// requires names the architecture feature that an opcode needs beyond ARMv8.0
// with SIMD.
func requires(name string) string {
	switch {
	case strings.HasPrefix(name, "CRC32"):
		return "CRC32"
	case strings.HasPrefix(name, "VPMULL"):
		return "PMULL"
	case name == "VEOR3":
		return "SHA3"
	}
	return ""
}

// form is one decoded entry of forms.
type form struct {
	acts  []byte
	kinds []kind
}

func lookup(name string, ops []operand.Op) (form, error) {
	list, ok := forms[name]
	if !ok {
		return form{}, fmt.Errorf("%s is not in the table of instructions", name)
	}
	for _, text := range list {
		var f form
		for _, o := range strings.Fields(text) {
			f.acts = append(f.acts, o[0])
			f.kinds = append(f.kinds, kind(o[1]))
		}
		if f.match(ops) {
			return f, nil
		}
	}
	got := make([]string, len(ops))
	for i, op := range ops {
		got[i] = kindNames[kindOf(op)]
	}
	return form{}, fmt.Errorf("%s does not take (%s)", name, strings.Join(got, ", "))
}

func (f form) match(ops []operand.Op) bool {
	if len(ops) != len(f.kinds) {
		return false
	}
	for i, op := range ops {
		if kindOf(op) != f.kinds[i] {
			return false
		}
	}
	return true
}
