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

// Objects of numbers and of what is true or false are filled as lists are; others are not.
func TestLayOutFillsObjects(t *testing.T) {
	object := func(n int, last string) string {
		return "{\n  \"a\": {\n    " + strings.Repeat("\"seven_s\": -1.5e-07,\n    ", n) + "\"b\": " + last + "\n  }\n}"
	}
	// of 20 characters each, and a space between: six would take 125
	five := "    " + strings.Repeat("\"seven_s\": -1.5e-07, ", 4) + "\"seven_s\": -1.5e-07,\n"
	for in, want := range map[string]string{
		object(10, "false"):   "{\n  \"a\": {\n" + five + strings.TrimSuffix(five, "\n") + " \"b\": false\n  }\n}",
		object(6, "1"):        "{\n  \"a\": {\n" + five + "    \"seven_s\": -1.5e-07, \"b\": 1\n  }\n}",
		object(6, `"word"`):   object(6, `"word"`),
		object(6, `"x\": 5"`): object(6, `"x\": 5"`),
		object(6, "null"):     object(6, "null"),
	} {
		if got := string(layOut([]byte(in))); got != want {
			t.Errorf("layOut(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestLayOutFillsLinesWithNumbers(t *testing.T) {
	list := func(item string, n int, last string) string {
		return "{\n  \"a\": [\n    " + strings.Repeat(item+",\n    ", n-1) + last + "\n  ]\n}"
	}
	// "-1.5e-07, " has ten characters, so that twelve and a half would fill a line: the
	// comma of the twelfth is the last of 119, and of 24 numbers the last has none.
	twelve := "    " + strings.Repeat("-1.5e-07, ", 11) + "-1.5e-07"
	for in, want := range map[string]string{
		list("-1.5e-07", 24, "-1.5e-07"):             "{\n  \"a\": [\n" + twelve + ",\n" + twelve + "\n  ]\n}",
		list("-1.5e-07", 13, "1"):                    "{\n  \"a\": [\n" + twelve + ",\n    1\n  ]\n}",
		list("-1.5e-07", 13, `"1"`):                  list("-1.5e-07", 13, `"1"`),
		list("-1.5e-07", 13, "null"):                 list("-1.5e-07", 13, "null"),
		list(strings.Repeat("1", leafWidth), 2, "1"): list(strings.Repeat("1", leafWidth), 2, "1"),
	} {
		if got := string(layOut([]byte(in))); got != want {
			t.Errorf("layOut(%q) = %q, want %q", in, got, want)
		}
	}
}

// Lines of a long list are full, and none is longer than leafWidth.
func TestLayOutFillsLongLists(t *testing.T) {
	long := "[" + strings.Repeat("\n  1,", 1<<18) + "\n  1\n]"
	lines := strings.Split(string(layOut([]byte(long))), "\n")
	if want := 1 + (1<<18)/40 + 1 + 1; len(lines) != want { // "1, " forty times, less a space at the end, are 119
		t.Errorf("%d lines, want %d", len(lines), want)
	}
	for _, line := range lines {
		if len(strings.TrimLeft(line, " ")) > leafWidth {
			t.Fatalf("a line of %d", len(line))
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
	switch k := r.IntN(6); {
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
	case k == 3:
		numbers := make([]float64, r.IntN(40))
		for i := range numbers {
			numbers[i] = r.NormFloat64()
		}
		return numbers
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
