package costmodel

import (
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
)

// inLists is a profile whose document has lists of knots and of chunks.
func inLists() *Profile {
	a := op.GroupType{Members: []op.Member{{Device: "a", Count: 2}}, Nodes: 1, Link: "w", Name: "2 a over w"}
	law := Law{Op: op.KindAllReduce, Group: a.Name, Curve: widened(), Range: []AxisRange{{"bytes", 1, 2}}, Spread: Spread{Lo: 0.9, Hi: 1.1}}
	steps := ringSteps()
	steps.Port = nil
	return &Profile{
		Devices: []op.DeviceType{{Name: "a", Model: "m", Stack: "s", Fingerprint: "f", Parallel: 1, Memory: 1}},
		Groups:  []op.GroupType{a}, Laws: []Law{law}, Steps: []Steps{steps},
	}
}

// formerly is how profiles told the same before there were lists.
var formerly = strings.NewReplacer(
	`"bytes": [100, 10000, 20000],`, `"knots": [{"bytes": 100, "time_s": 1}, {"bytes": 10000, "time_s": 4}, {"bytes": 20000, "time_s": 6}],`,
	`        "time_s": [1, 4, 6],`, "",
	`"chunks": {`, `"chunks": [{"chunk_bytes": 64, "factor": 1, "half_width": 0.1}, {"chunk_bytes": 1024, "factor": 1.2, "half_width": 0.2},`+
		`{"chunk_bytes": 1048576, "factor": 0.9, "half_width": 0.15}, {"chunk_bytes": 1073741824, "factor": 1, "half_width": 0.4}`,
	`"chunk_bytes": [64, 1024, 1048576, 1073741824],`, "",
	`"factors": [1, 1.2, 0.9, 1],`, "",
	"\"half_widths\": [0.1, 0.2, 0.15, 0.4]\n      }", "]",
)

// What is written is read again, and so is what was written before there were lists.
func TestKnotsAndChunksAreLists(t *testing.T) {
	want := inLists()
	data, err := doc.Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []string{
		`"bytes": [100, 10000, 20000]`, `"time_s": [1, 4, 6]`, `"half_widths": [0.1, 0.3, 0.2]`,
		`"chunk_bytes": [64, 1024, 1048576, 1073741824]`, `"factors": [1, 1.2, 0.9, 1]`, `"half_widths": [0.1, 0.2, 0.15, 0.4]`,
	} {
		if !strings.Contains(string(data), list) {
			t.Errorf("no %s in %s", list, data)
		}
	}
	old := formerly.Replace(string(data))
	if strings.Contains(old, `"time_s": [`) || strings.Contains(old, "factors") {
		t.Fatal(old)
	}
	for _, text := range []string{string(data), old} {
		var got Profile
		if err := doc.Decode("x", []byte(text), &got); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		c := got.Laws[0].Curve
		if c.Form != LogLog || !slices.Equal(c.Knots, want.Laws[0].Curve.Knots) || !slices.Equal(c.HalfWidths, want.Laws[0].Curve.HalfWidths) ||
			!slices.Equal(got.Steps[0].Chunks, want.Steps[0].Chunks) {
			t.Errorf("%+v and %+v of %s", c, got.Steps[0].Chunks, text)
		}
	}
}

// A list that is torn, or of something else, is told of by its name.
func TestListsAreReadStrictly(t *testing.T) {
	data, err := doc.Encode(inLists())
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	old := formerly.Replace(text)
	for _, c := range []struct{ in, from, to, want string }{
		{text, "[1, 4, 6]", "[1, 4]", "laws[0].curve: time_s: 2 for 3 bytes: want one each"},
		{text, `"bytes": [100, 10000, 20000],`, "", "laws[0].curve: time_s: 3 for 0 bytes: want one each"},
		{text, `"time_s": [1, 4, 6],`, "", "laws[0].curve: time_s: 0 for 3 bytes: want one each"},
		{text, "[0.1, 0.3, 0.2]", "[0.1, 0.3]", "laws[0].curve.half_widths: 2 for 3 bytes"},
		{text, "[1, 4, 6]", `[1, "4", 6]`, `laws[0].curve.time_s[1]: "4": want a number`},
		{text, "[1, 4, 6]", "[1, null, 6]", "laws[0].curve.time_s[1]: null: want a number"},
		{text, "[100, 10000, 20000]", "[100, 10000.5, 20000]", "laws[0].curve.bytes[1]: 10000.5: "},
		{text, "[100, 10000, 20000]", "[100, 100, 20000]", "laws[0].curve.bytes[1]: 100: must rise"},
		{text, `"time_s": [1`, `"times_s": [1`, `laws[0].curve: unknown key "times_s" (did you mean "time_s"?)`},
		{text, `"form": "log_log"`, `"form": "log_log", "knots": [{"bytes": 1, "time_s": 1}]`, "laws[0].curve: knots: beside bytes and time_s"},
		{old, `"bytes": 100,`, `"byte": 100,`, `laws[0].curve.knots[0]: unknown key "byte"`},
		{text, "[1, 1.2, 0.9, 1]", "[1, 1.2, 0.9]", "steps[0].chunks: factors: 3 for 4 chunk_bytes: want one each"},
		{text, "[0.1, 0.2, 0.15, 0.4]", "[0.1, 0.2, 0.15, 0.4, 1]", "steps[0].chunks: half_widths: 5 for 4 chunk_bytes: want one each"},
		{text, `"factors"`, `"factor"`, `steps[0].chunks: unknown key "factor" (did you mean "factors"?)`},
		{text, "[1, 1.2, 0.9, 1]", "[1, 0, 0.9, 1]", "steps[0].chunks.factors[1]: 0: want above 0"},
		{old, `"factor": 1.2`, `"factors": 1.2`, `steps[0].chunks[1]: unknown key "factors"`},
	} {
		changed := strings.Replace(c.in, c.from, c.to, 1)
		if changed == c.in {
			t.Fatalf("%s is not in %s", c.from, c.in)
		}
		var p Profile
		if err := doc.Decode("x", []byte(changed), &p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s in the place of %s: %v, want %q", c.to, c.from, err, c.want)
		}
	}
	var c struct {
		doc.Header
		Curve *Curve `json:"curve"`
	}
	if err := doc.DecodeStrict("x", 0, []byte(`{"curve": null}`), &c); err != nil || c.Curve != nil {
		t.Errorf("%v, %v: no curve is as none given", c.Curve, err)
	}
}
