package profile_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/profile"
)

const header = `{"schema":"evenkeel.recording/v1","tool":"evenkeel 0.1.0","created":"2026-01-01T00:00:00Z","backend":"cpu","simulated":false,` +
	`"fingerprint":"f","seed":1,"machine":{"host":"h","os":"o","cpu":"c","cores":2,"l1_data_bytes":1,"l2_bytes":2,"l3_bytes":3,"memory_bytes":4},` +
	`"devices":[{"name":"cpu:1","model":"m","stack":"s","fingerprint":"d","parallel":1,"memory_bytes":4}],` +
	`"groups":[{"name":"g","members":[{"device":"cpu:1","count":2}],"nodes":1,"link":"unix_socket"}],` +
	`"protocol":{"min_samples":10,"min_samples_long":5,"long_s":0.1,"max_samples":200,"noise":0.005,"min_sample_s":0.0005,"point_time_s":0.1,"wait_limit":0.1,"max_discards":6}}`

// Its key is the first 12 bytes of the SHA-256 of "f\ncpu:1\ngemm\n", the shape and "\n".
const point = `{"t":"point","key":"8858a1101bb493beaa379706","on":"cpu:1","op":"gemm","shape":{"pass":"fwd","m":64,"n":64,"k":64,"dtype":"f32"},"times_s":[0.001,0.002],"inner":1,"stop":"time","at":"2026-01-01T00:00:00Z","elapsed_s":0.1}`

func TestReadNamesWhatIsWrong(t *testing.T) {
	swap := func(old, new string) string {
		if !strings.Contains(point, old) {
			t.Fatalf("the point has no %q", old)
		}
		return header + "\n" + strings.Replace(point, old, new, 1) + "\n"
	}
	for name, c := range map[string]struct{ data, want string }{
		"empty":              {"", "x.rec.jsonl: holds no complete line"},
		"blank":              {"\n\n", "holds no complete line"},
		"header torn":        {header[:100], "holds no complete line"},
		"binary":             {"\x00\x01\x02\xff\n", "x.rec.jsonl"},
		"another document":   {`{"schema":"evenkeel.profile/v1"}` + "\n", "is an evenkeel.profile, expected evenkeel.recording"},
		"a model":            {"{\n  \"hidden_size\": 64\n}\n", "x.rec.jsonl:1: a JSON document of several lines begins here, and a recording has an object in every line; name a recording"},
		"another version":    {strings.Replace(header, "recording/v1", "recording/v9", 1) + "\n", "update evenkeel"},
		"no schema":          {`{"tool":"x"}` + "\n", `has no "schema" key`},
		"point first":        {point + "\n", `has no "schema" key`},
		"torn in the middle": {header + "\n" + point[:60] + "\n" + point + "\n", "x.rec.jsonl:2"},
		"unknown line":       {header + "\n" + `{"t":"pint"}` + "\n", `x.rec.jsonl:2: t: "pint": want point, again, canary, peer, schedule, resume or end`},
		"no type":            {header + "\n" + `{"key":"k"}` + "\n", `x.rec.jsonl:2: t: ""`},
		"unknown key":        {swap(`"inner"`, `"iner"`), `unknown key "iner" (did you mean "inner"?)`},
		"duplicate key":      {swap(`"inner":1`, `"inner":1,"inner":1`), "inner"},
		"unknown op":         {swap(`"gemm"`, `"gem"`), `x.rec.jsonl:2: unknown op "gem" (did you mean "gemm"?); the ops are`},
		"unknown axis":       {swap(`"n":64`, `"nn":64`), "x.rec.jsonl:2: shape.nn: gemm has no such axis; it has pass, m, n, k, dtype"},
		"zero shape":         {swap(`"m":64`, `"m":0`), "x.rec.jsonl:2: shape.m: 0: must be at least 1"},
		"negative shape":     {swap(`"m":64`, `"m":-64`), "x.rec.jsonl:2: shape.m: -64: must be at least 1"},
		"NaN":                {swap(`0.002`, `NaN`), "x.rec.jsonl:2"},
		"Infinity":           {swap(`0.002`, `Infinity`), "x.rec.jsonl:2"},
		"huge number":        {swap(`0.002`, `1e999`), "x.rec.jsonl:2"},
		"negative time":      {swap(`0.002`, `-0.002`), "x.rec.jsonl:2: times_s[1]: -0.002: want a positive number of seconds"},
		"wrong unit":         {swap(`0.002`, `2000000`), "x.rec.jsonl:2: times_s[1]: 2e+06: more than a day; are these seconds?"},
		"no time at all":     {swap(`0.002`, `1e-300`), "x.rec.jsonl:2: times_s[1]: 1e-300: less than a picosecond; are these seconds?"},
		"no samples":         {swap(`0.001,0.002`, ``), "x.rec.jsonl:2: times_s: 0 samples (0 discarded); measure the point again: evenkeel calibrate --fresh --only gemm"},
		"failed with times":  {swap(`"inner"`, `"class":"oom","error":"e","inner"`), `a point of class "oom" has no result`},
		"size of a time":     {swap(`"inner"`, `"size_bytes":5,"inner"`), "x.rec.jsonl:2: size_bytes: 5: want a positive number of a memory op, and none of another"},
		"ratio of a time":    {swap(`"inner"`, `"ratio":1.5,"inner"`), "x.rec.jsonl:2: ratio: 1.5: want a positive number of an overlap"},
		"elapsed backwards":  {swap(`"elapsed_s":0.1`, `"elapsed_s":-5`), "x.rec.jsonl:2: elapsed_s: -5: want a number of seconds, 0 or more; mend the line or delete it"},
		"no calls":           {swap(`"inner":1`, `"inner":0`), "x.rec.jsonl:2: inner: 0: want the number of calls that a sample is the mean of, 1 or more; mend"},
		"place of a point":   {swap(`"inner"`, `"place":"n0","inner"`), `x.rec.jsonl:2: place: "n0": every peer names its place`},
		"unknown place":      {swap(`"t":"point"`, `"t":"peer","place":"n9"`), `x.rec.jsonl:2: place: "n9": the header lists no such place of "cpu:1"`},
		"unknown device":     {swap(`"cpu:1"`, `"cpu:9"`), `x.rec.jsonl:2: on: "cpu:9": the header lists no such device or group`},
		"wrong ranks":        {swap(`"on":"cpu:1"`, `"on":"g"`), `x.rec.jsonl:2: on: "g" has 2 ranks, the shape has 1`},
		"key of another":     {swap(`"m":64`, `"m":65`), `x.rec.jsonl:2: key: "8858a1101bb493beaa379706": gemm of {"pass":"fwd","m":65,"n":64,"k":64,"dtype":"f32"} on cpu:1 has the key "`},
		"no key":             {swap(`"8858a1101bb493beaa379706"`, `""`), `x.rec.jsonl:2: key: "": gemm of {"pass":"fwd","m":64,"n":64,"k":64,"dtype":"f32"} on cpu:1 has the key "8858a1101bb493beaa379706" in this recording; the line was changed, or is of another recording: correct the file or make it again`},
		"uneven rank times":  {swap(`"inner"`, `"rank_times_s":[[1]],"inner"`), "x.rec.jsonl:2: rank_times_s[0]: 1 samples: times_s has 2"},
	} {
		_, err := profile.Read("x.rec.jsonl", strings.NewReader(c.data), profile.Visitor{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n got %v\nwant %s", name, err, c.want)
		}
	}
}

func TestReadAcceptsCRLFAndDropsATornEnd(t *testing.T) {
	data := strings.ReplaceAll(header+"\n"+point+"\n"+point+"\n", "\n", "\r\n") + point[:50]
	tally, err := profile.Read("x", strings.NewReader(data), profile.Visitor{})
	if err != nil || tally.Points != 2 || !tally.Torn {
		t.Errorf("%+v, %v", tally, err)
	}
}

func TestReadStopsAtALineWithoutEnd(t *testing.T) {
	endless := io.MultiReader(strings.NewReader(header+"\n"+`{"t":"point","key":"`), &repeat{left: 1 << 30})
	_, err := profile.Read("x.rec.jsonl", endless, profile.Visitor{})
	if err == nil || !strings.Contains(err.Error(), "x.rec.jsonl:2") {
		t.Errorf("got %v", err)
	}
}

// repeat yields 'a' so many times.
type repeat struct{ left int }

func (r *repeat) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, io.EOF
	}
	n := min(len(p), r.left)
	r.left -= n
	for i := range p[:n] {
		p[i] = 'a'
	}
	return n, nil
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(header + "\n" + point + "\n"))
	f.Add([]byte(header + "\n" + `{"t":"schedule","budget_s":1,"points":[{"on":"cpu:1","op":"norm","shape":{"tokens":1,"width":1,"dtype":"f32"}}],"canaries":[0]}` + "\n"))
	f.Add([]byte(header + "\n" + `{"t":"end","at":"x","reason":"done","elapsed_s":1}` + "\n" + `{"t":"resume","tool":"x","at":"y"}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		points := 0
		tally, err := profile.Read("x", bytes.NewReader(data), profile.Visitor{
			Point: func(p *profile.Point) error {
				points++
				if p.OK() != (len(p.Times) > 0) || p.Shape == nil {
					t.Errorf("an invalid point was handed on: %+v", p)
				}
				return nil
			},
		})
		if err == nil && tally.Points != points {
			t.Errorf("tally %d, visited %d", tally.Points, points)
		}
	})
}
