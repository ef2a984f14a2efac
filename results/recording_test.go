package results

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/keyed"
	"github.com/evenkeel/evenkeel/profile"
)

const recordingHeader = `{"schema":"evenkeel.recording/v1","tool":"evenkeel 0.1.0","created":"2026-01-31T12:00:00Z","backend":"sim","simulated":true,"fingerprint":"0123456789abcdef","seed":3,` +
	`"machine":{"host":"box","os":"linux","cpu":"Example CPU","cores":2,"l1_data_bytes":32768,"l2_bytes":1048576,"l3_bytes":0,"memory_bytes":8589934592},` +
	`"devices":[{"name":"cpu:1","model":"Example CPU","stack":"go1.26","fingerprint":"aa","parallel":1,"memory_bytes":1073741824}],"groups":[],` +
	`"protocol":{"min_samples":10,"min_samples_long":5,"long_s":0.1,"max_samples":200,"noise":0.005,"min_sample_s":0.0005,"point_time_s":1,"wait_limit":0.1,"max_discards":6},"notes":["no NVIDIA driver was found"]}`

const normShape = `"on":"cpu:1","op":"norm","shape":{"tokens":%d,"width":512,"dtype":"f32"}`

// recordingText is a recording of three points, one failed, a canary that ends
// 10 % above its first time, a resume and a torn last line.
func recordingText() string {
	point := func(t string, tokens int, rest string) string {
		return keyed.Line("0123456789abcdef", fmt.Sprintf(`{"t":%q,"key":"k",`+normShape+`,%s,"guard":{"wait_share":0},"at":"2026-01-31T12:00:00Z","elapsed_s":0.5}`, t, tokens, rest))
	}
	return strings.Join([]string{
		recordingHeader,
		point("point", 64, `"times_s":[1e-5,1.1e-5,1.2e-5],"inner":1,"stop":"noise","discarded":4`),
		point("point", 128, `"times_s":[2e-5,2.1e-5],"inner":1,"stop":"time","disturbed":true`),
		point("point", 256, `"class":"oom","error":"out of memory"`),
		point("point", 64, `"class":"too_long","error":"no time"`),
		`{"t":"resume","tool":"evenkeel 0.1.0","at":"2026-01-31T12:00:00Z"}`,
		point("canary", 64, `"times_s":[1.3e-5,1.32e-5,1.4e-5],"inner":1,"stop":"steady"`),
		point("canary", 64, `"times_s":[1.2e-5,1.21e-5,1.3e-5],"inner":1,"stop":"noise"`),
		`{"t":"end","at":"2026-01-31T12:00:00Z","reason":"budget","elapsed_s":3}`,
		`{"t":"poi`,
	}, "\n")
}

func testRecording() *RecordingSummary {
	s, err := Summarise("cpu.rec.jsonl", strings.NewReader(recordingText()))
	if err != nil {
		panic(err)
	}
	return s
}

func TestSummariseCounts(t *testing.T) {
	s := testRecording()
	if len(s.Strata) != 1 {
		t.Fatalf("strata: %+v", s.Strata)
	}
	c := s.Strata[0]
	if c.Points != 2 || c.Failed != 1 || c.Samples != 5 || c.Discarded != 4 || c.Disturbed != 1 {
		t.Errorf("counts: %+v", c)
	}
	if c.Stops[profile.StopNoise] != 1 || c.Stops[profile.StopTime] != 1 || c.Classes[profile.OutOfMemory] != 1 || c.Classes[profile.TooLong] != 1 {
		t.Errorf("stops %v, classes %v", c.Stops, c.Classes)
	}
	if !s.Torn || s.Resumes != 1 || s.End == nil || s.End.Reason != profile.EndBudget {
		t.Errorf("torn %v, resumes %d, end %+v", s.Torn, s.Resumes, s.End)
	}
	// The first time is the point's 11 us; the canaries are 13.2 and 12.1 us.
	d := s.Canaries[0]
	if len(s.Canaries) != 1 || d.Times != 2 || math.Abs(d.Last-1.1) > 1e-9 || math.Abs(d.Worst-1.2) > 1e-9 {
		t.Errorf("drift: %+v", s.Canaries)
	}
}

// What a budget had no time to wait for is told apart from what it had no time for at all, and
// from failures.
func TestWhatWasCutOffHasItsOwnNote(t *testing.T) {
	text := strings.ReplaceAll(recordingText(), `"class":"oom","error":"out of memory"`, `"class":"cut","error":"no answer in 30s"`)
	s, err := Summarise("cpu.rec.jsonl", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := Recording(&b, s); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"1 point of norm on cpu:1 without a result, for the budget had no time to wait longer for a worker; the reason: no answer in 30s; wait longer: evenkeel calibrate --fresh --budget 10m",
		"a variant of it was left out, for the budget had no time for calls as long",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, b.String())
		}
	}
	if strings.Contains(got, "failed: cut") || s.Strata[0].Failed != 1 {
		t.Errorf("failed %d:\n%s", s.Strata[0].Failed, b.String())
	}
}

// Through torch a machine without a GPU is measured again if told; the flags of the
// calibration stay, and what it measured makes way for what a text asks for.
func TestAdvisedCalibrationsHaveTheFlagsOfThisOne(t *testing.T) {
	for _, c := range []struct{ further, text, want string }{
		{"", "evenkeel calibrate --fresh", "evenkeel calibrate --fresh"},
		{"--backend torch", "more: evenkeel calibrate --fresh --budget 10m", "more: evenkeel calibrate --backend torch --fresh --budget 10m"},
		{"--backend torch", "evenkeel calibrate --backend torch", "evenkeel calibrate --backend torch"},
		{"--out a --only gemm --devices cpu:1", "evenkeel calibrate --fresh --only attn_bwd", "evenkeel calibrate --out a --devices cpu:1 --fresh --only attn_bwd"},
		{"--backend torch --out p", "evenkeel calibrate --backend torch --fresh", "evenkeel calibrate --out p --backend torch --fresh"},
		{"--points 9", "evenkeel calibrate --point-time 3s", "evenkeel calibrate --points 9 --point-time 3s"},
		{"--points 6 --out a", "evenkeel calibrate --fresh --budget 10m", "evenkeel calibrate --out a --fresh --budget 10m"},
		{"--points=6 --out a", "evenkeel calibrate --fresh", "evenkeel calibrate --points=6 --out a --fresh"},
		{"--out a", "evenkeel import", "evenkeel import"},
	} {
		if got := (&printer{further: c.further}).advised(c.text); got != c.want {
			t.Errorf("%q with %q: %q, want %q", c.text, c.further, got, c.want)
		}
	}
	if got := throughTorch([]op.DeviceType{{Name: "torch_cpu:1"}}); got != "--backend torch" {
		t.Errorf("%q", got)
	}
}

// A part copied behind itself is no further measuring, as to fit.
func TestSummariseCountsALineOnce(t *testing.T) {
	header, lines, _ := strings.Cut(recordingText(), "\n")
	lines, _, _ = strings.Cut(lines, `{"t":"resume"`)
	want, err := Summarise("x.rec.jsonl", strings.NewReader(header+"\n"+lines))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Summarise("x.rec.jsonl", strings.NewReader(header+"\n"+lines+lines))
	if err != nil {
		t.Fatal(err)
	}
	if got.Elapsed != want.Elapsed || !reflect.DeepEqual(got.Strata, want.Strata) {
		t.Errorf("%v and %+v, of one copy %v and %+v", got.Elapsed, got.Strata, want.Elapsed, want.Strata)
	}
	var b strings.Builder
	if err := Recording(&b, got); err != nil || !strings.Contains(strings.Join(strings.Fields(b.String()), " "), "4 lines of the recording stood there already, with the same times") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestSummariseKeepsReadErrors(t *testing.T) {
	if _, err := Summarise("x.rec.jsonl", strings.NewReader("{}\n")); err == nil || !strings.Contains(err.Error(), "x.rec.jsonl") {
		t.Errorf("got %v, want an error that names the file", err)
	}
}

// TestStrataKeepTheirOrder: on by name, ops as op.Table lists them.
func TestStrataKeepTheirOrder(t *testing.T) {
	s := &RecordingSummary{}
	for _, c := range []StratumCount{{On: "b", Op: op.KindNorm}, {On: "a", Op: op.KindGEMM}, {On: "b", Op: op.KindAttnFwd}, {On: "b", Op: op.KindNorm}} {
		s.stratum(c.On, c.Op).Points++
	}
	var got []string
	for _, c := range s.Strata {
		got = append(got, fmt.Sprintf("%s %s %d", c.On, c.Op, c.Points))
	}
	if want := "a gemm 1, b attn_fwd 1, b norm 2"; strings.Join(got, ", ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// --only takes what laws are fitted to; the rest is measured once beside it, and a command
// that asks for that alone is refused.
func TestWhatIsMeasuredOnceIsNotAskedForAlone(t *testing.T) {
	for k, want := range map[op.Kind]string{op.KindNorm: " --only norm", op.KindSendRecv: " --only send_recv", op.KindMemLayer: "", op.KindOverlap: ""} {
		if got := onlyOf(k); got != want {
			t.Errorf("%s: %q, want %q", k, got, want)
		}
	}
}
