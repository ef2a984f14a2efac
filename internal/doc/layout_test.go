package doc

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestLayOutPutsShortLeavesOnALine(t *testing.T) {
	for in, want := range map[string]string{
		"{\n  \"a\": 1,\n  \"b\": 2\n}":                       `{"a": 1, "b": 2}`,
		"{\n  \"a\": [\n    1,\n    2\n  ]\n}":                "{\n  \"a\": [1, 2]\n}",
		"{\n  \"a\": {},\n  \"b\": [\n    \"]\\\"}\"\n  ]\n}": "{\n  \"a\": {},\n  \"b\": [\"]\\\"}\"]\n}",
		"[\n  \"" + strings.Repeat("x", leafWidth) + "\"\n]":  "[\n  \"" + strings.Repeat("x", leafWidth) + "\"\n]",
	} {
		if got := string(layOut([]byte(in))); got != want {
			t.Errorf("layOut(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestLayOutChangesNothingButSpace compares what a standard decoder reads.
func TestLayOutChangesNothingButSpace(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		data, err := json.MarshalIndent(anything(r, 4), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		var before, after bytes.Buffer
		if err := json.Compact(&before, data); err != nil {
			t.Fatal(err)
		}
		if err := json.Compact(&after, layOut(data)); err != nil || before.String() != after.String() {
			t.Fatalf("%s became %s (%v)", before.String(), after.String(), err)
		}
	}
}

// anything is a random value of JSON.
func anything(r *rand.Rand, depth int) any {
	switch k := r.IntN(5); {
	case k == 0 && depth > 0:
		m := map[string]any{}
		for range r.IntN(4) {
			m[text(r)] = anything(r, depth-1)
		}
		return m
	case k == 1 && depth > 0:
		l := []any{}
		for range r.IntN(4) {
			l = append(l, anything(r, depth-1))
		}
		return l
	case k == 2:
		return r.NormFloat64()
	}
	return text(r)
}

func text(r *rand.Rand) string {
	var s strings.Builder
	for range r.IntN(6) {
		const alphabet = "{}[]\",\\ ax\n"
		s.WriteByte(alphabet[r.IntN(len(alphabet))])
	}
	return s.String()
}
