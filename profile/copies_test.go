package profile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// importedText is a recording made from others' files: a GEMM for every time, in turns of two
// precisions, and so of two laws.
func importedText(times ...string) string {
	var b strings.Builder
	b.WriteString(`{"schema":"evenkeel.recording/v1","tool":"t","created":"2026-01-31T12:00:00Z","backend":"import:table","simulated":false,"fingerprint":"aa","seed":0,` +
		`"machine":{"host":"","os":"","cpu":"","cores":0,"l1_data_bytes":0,"l2_bytes":0,"l3_bytes":0,"memory_bytes":0},` +
		`"devices":[{"name":"gpu","model":"gpu","stack":"s","fingerprint":"aa","parallel":1,"memory_bytes":1}],"groups":[]}` + "\n")
	for i, s := range times {
		shape := op.GEMM{Pass: op.Forward, M: units.Tokens(64 * (1 + i/2)), N: 64, K: 64, DType: [2]op.DType{op.BF16, op.F16}[i%2]}
		spot := profile.NewSpot("gpu", shape)
		fmt.Fprintf(&b, `{"t":"point","key":%q,"on":"gpu","op":"gemm","shape":%s,"times_s":[%s],"inner":1,"at":"","elapsed_s":0}`+"\n", spot.Key("aa"), spot.Raw, s)
	}
	return b.String()
}

// The same file imported into two recordings counts once, whole or in part, whichever comes
// first; times of two runs that happen to agree count both, and so do a file's own.
func TestCopiesOfImports(t *testing.T) {
	const a = "1e-5 2e-5 3e-5 4e-5 5e-5 6e-5"
	for name, c := range map[string]struct {
		texts          []string
		counted, lines int
	}{
		"again":       {[]string{a, a}, 6, 6},
		"three times": {[]string{a, a, a}, 6, 12},
		"with more":   {[]string{a, a + " 7e-5 8e-5"}, 8, 6},
		"with less":   {[]string{a + " 7e-5 8e-5", a}, 8, 6},
		"one law":     {[]string{a, "1e-5 2.1e-5 3e-5 4.1e-5 5e-5 6.1e-5"}, 9, 3},
		"two runs":    {[]string{a, "1e-5 2e-5 3.1e-5 4.1e-5 5.1e-5 6.1e-5"}, 12, 0},
	} {
		var copies profile.Copies
		counted := 0
		for _, text := range c.texts {
			if _, err := copies.Read("x.rec.jsonl", strings.NewReader(importedText(strings.Fields(text)...)), profile.Visitor{
				Point: func(*profile.Point) error { counted++; return nil },
			}); err != nil {
				t.Fatal(err)
			}
		}
		if counted != c.counted || copies.Lines != c.lines {
			t.Errorf("%s: %d counted, %d not, want %d and %d", name, counted, copies.Lines, c.counted, c.lines)
		}
		if said := copies.Warning("the recordings"); (said != "") != (c.lines > 0) {
			t.Errorf("%s: said %q", name, said)
		}
	}
	header, line, _ := strings.Cut(importedText("1e-5"), "\n")
	var copies profile.Copies
	tally, err := copies.Read("x.rec.jsonl", strings.NewReader(header+"\n"+strings.Join(slices.Repeat([]string{line}, 3), "")), profile.Visitor{})
	if err != nil || tally.Points != 3 || copies.Lines != 0 {
		t.Errorf("of its own lines %d of %d, %v", copies.Lines, tally.Points, err)
	}
}
