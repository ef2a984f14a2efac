package results

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/keyed"
	"github.com/evenkeel/evenkeel/internal/units"
)

// gaugedRecording has points of two places and numbers that are no time.
func gaugedRecording(t *testing.T) *RecordingSummary {
	t.Helper()
	header := strings.Replace(recordingHeader, `"groups":[],`, `"groups":[],"places":[{"on":"cpu:1","name":"n0/c0","ranks":["n0/c0"]},{"on":"cpu:1","name":"n1/c0","ranks":["n1/c0"]}],`, 1)
	line := func(kind, op, shape, rest string) string {
		return keyed.Line("0123456789abcdef", fmt.Sprintf(`{"t":%q,"key":"k","on":"cpu:1","op":%q,"shape":%s,%s,"guard":{"wait_share":0},"at":"2026-01-31T12:00:00Z","elapsed_s":0.5}`, kind, op, shape, rest))
	}
	norm := `{"tokens":64,"width":512,"dtype":"f32"}`
	text := strings.Join([]string{
		header,
		line("point", "norm", norm, `"times_s":[1e-5],"inner":1,"stop":"count"`),
		line("peer", "norm", norm, `"place":"n1/c0","times_s":[1e-5],"inner":1,"stop":"count"`),
		line("peer", "norm", norm, `"place":"n1/c0","class":"hung","error":"no answer"`),
		line("point", "mem_capacity", `{}`, `"size_bytes":3221225472`),
		line("point", "mem_layer", `{"tokens":2048,"hidden":512,"ffn":1024,"q_heads":8,"kv_heads":2,"head_dim":64,"dtype":"f32"}`, `"size_bytes":17825792`),
		line("point", "overlap", `{"compute":"gemm","comm":"h2d","slowed":"comm","tokens":1024,"bytes":1048576}`, `"ratio":1.25`),
		line("canary", "mem_capacity", `{}`, `"size_bytes":3221225472`),
	}, "\n") + "\n"
	s, err := Summarise("gpu.rec.jsonl", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRecordingShowsPlacesAndWhatIsNoTime(t *testing.T) {
	s := gaugedRecording(t)
	if diff := cmp.Diff([]PeerCount{{On: "cpu:1", Place: "n1/c0", Points: 1, Failed: 1}}, s.Peers); diff != "" {
		t.Error(diff)
	}
	if len(s.Gauged) != 3 || s.Gauged[0].Size != 3*units.GiB || s.Gauged[2].Ratio != 1.25 || len(s.Canaries) != 0 {
		t.Errorf("%+v, %d canaries", s.Gauged, len(s.Canaries))
	}
	var buf bytes.Buffer
	if err := Recording(&buf, s); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(buf.String()), " ")
	for _, want := range []string{
		"recording gpu.rec.jsonl: 4 points, 0 failed",
		"mem_capacity cpu:1 3 GiB", "mem_layer tokens=2k hidden=512 ffn=1024 cpu:1 17 MiB",
		"overlap of gemm and h2d, comm slowed, tokens=1k bytes=1 MiB cpu:1 1.250",
		"n1/c0 cpu:1 1 1",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, buf.String())
		}
	}
}

// What activations rest on is said rank by rank, and candidates are costed the
// same way as the plan was.
func TestPlanSaysWhatItsMemoryRestsOn(t *testing.T) {
	show := func(ranks int) (plan, explain string) {
		d := testPlan()
		for r, m := range d.Job.MemoryWith(d.Layout(), func(int) costmodel.DeviceMemory {
			return costmodel.DeviceMemory{Capacity: 2 * units.GiB, LayerToken: 12345}
		}) {
			if r < ranks {
				d.Step.Ranks[r].Memory = m
			}
		}
		peak := units.Bytes(0)
		for _, r := range d.Step.Ranks {
			peak = max(peak, r.Memory.Peak())
		}
		d.Compared[0].Peak = peak
		if got := candidateMemory(d, d.Compared[0]); got.Peak() != peak || ranks == 4 && got.LayerToken != 12345 {
			t.Errorf("%d ranks measured: the candidate's memory is %+v, want a peak of %d", ranks, got, peak)
		}
		var a, b bytes.Buffer
		if err := Plan(&a, d); err != nil {
			t.Fatal(err)
		}
		if err := Explain(&b, d); err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(a.String()), " "), b.String()
	}
	for ranks, want := range map[int]string{
		0: "memory is by formula (assumed); a backend that measures memory replaces some of it: evenkeel calibrate --fresh",
		3: "activations rest on a layer's measured bytes a token on 3 of 4 ranks; all other memory is by formula (assumed);",
		4: "activations rest on a layer's measured bytes a token; the rest of the memory is by formula (assumed)",
	} {
		plan, explain := show(ranks)
		if !strings.Contains(plan, want) {
			t.Errorf("%d ranks measured: no %q in %s", ranks, want, plan)
		}
		// Ranks 0 to 2 are alike and shown as one.
		if got, want := strings.Count(explain, "(measured: 12345 bytes a token and layer)"), (ranks+2)/3; got != want {
			t.Errorf("%d ranks measured, said %d times, want %d", ranks, got, want)
		}
	}
}

func TestGaugedTitlesNameTheirSizes(t *testing.T) {
	for _, g := range gaugedRecording(t).Gauged {
		if title := gaugedTitle(g); !strings.HasPrefix(title, string(g.Shape.Kind())) {
			t.Errorf("%q of %s", title, g.Shape.Kind())
		}
	}
	if bytesOrNone(0) != none || bytesOrNone(units.KiB) != "1 KiB" {
		t.Error("0 bytes stand for not measured")
	}
}

// As JSON a recording's account is spelt as all others: lower-case keys, which tell the
// unit where there is one, and shapes with the op that they are of.
func TestASummaryAsJSONHasKeysOfItsOwn(t *testing.T) {
	for _, s := range []*RecordingSummary{gaugedRecording(t), testRecording()} {
		data, err := json.Marshal(s, json.Deterministic(true))
		if err != nil {
			t.Fatal(err)
		}
		if bad := regexp.MustCompile(`"[^"]*[A-Z][^"]*":`).FindAllString(string(data), -1); bad != nil {
			t.Errorf("keys %v", bad)
		}
		for _, want := range []string{`"shortest_s":`, `"elapsed_s":`, `"op":`} {
			if !strings.Contains(string(data), want) {
				t.Errorf("no %s in %s", want, data)
			}
		}
	}
	data, err := json.Marshal(gaugedRecording(t).Gauged)
	if err != nil || !strings.Contains(string(data), `{"op":"mem_capacity","on":"cpu:1","shape":{},"size_bytes":3221225472}`) {
		t.Errorf("%s, %v", data, err)
	}
	data, err = json.Marshal(testRecording().Canaries)
	if err != nil || !strings.Contains(string(data), `"op":"norm","shape":{`) || !strings.Contains(string(data), `"last_ratio":`) {
		t.Errorf("%s, %v", data, err)
	}
}
