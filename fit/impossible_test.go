package fit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/keyed"
)

// gpuRecording is one of products of 4096 rows and columns on a GPU of 989 TFLOP/s, on which
// one of 64 rows takes at least 2.17 us, of the given times in s.
func gpuRecording(times ...float64) string {
	const header = `{"schema":"evenkeel.recording/v1","tool":"evenkeel 0.1.0","created":"2026-01-31T12:00:00Z","backend":"import:table","simulated":false,"fingerprint":"0123456789abcdef","seed":0,` +
		`"machine":{"host":"","os":"","cpu":"","cores":0,"l1_data_bytes":0,"l2_bytes":0,"l3_bytes":0,"memory_bytes":0},` +
		`"devices":[{"name":"gpu","model":"gpu","stack":"","fingerprint":"aa","parallel":132,"memory_bytes":85899345920,"sheet":{"bf16_flops_per_s":989e12}}],"groups":[],` +
		`"protocol":{"min_samples":0,"min_samples_long":0,"long_s":0,"max_samples":0,"noise":0,"min_sample_s":0,"point_time_s":0,"wait_limit":0,"max_discards":0},"notes":[]}`
	lines := []string{header}
	for i, s := range times {
		lines = append(lines, keyed.Line("0123456789abcdef", fmt.Sprintf(`{"t":"point","key":"k","on":"gpu","op":"gemm","shape":{"pass":"fwd","m":%d,"n":4096,"k":4096,"dtype":"bf16"},"times_s":[%g],"inner":0,"at":"","elapsed_s":0}`, 64*(i+1), s)))
	}
	return strings.Join(lines, "\n") + "\n"
}

// streamingRecording is of norms that read and write 256 MiB each on a GPU of 3.125 TB/s and
// 1 MiB of cache, which take 172 us at the memory's rate, of the given times in s.
func streamingRecording(times ...float64) string {
	lines := strings.Split(gpuRecording(times...), "\n")
	lines[0] = strings.Replace(lines[0], `"bf16_flops_per_s":989e12`, `"memory_bytes_per_s":3.125e12,"l2_bytes":1048576`, 1)
	for i, s := range times {
		lines[i+1] = keyed.Line("0123456789abcdef", fmt.Sprintf(`{"t":"point","key":"k","on":"gpu","op":"norm","shape":{"tokens":%d,"width":4096,"dtype":"f32"},"times_s":[%g],"inner":0,"at":"","elapsed_s":0}`, 16384+i, s))
	}
	return strings.Join(lines, "\n")
}

// Points that no clock explains are left out of laws and judgements, counted, and the first
// named: a recording need not come from import, which refuses such rows. A board that is
// clocked beyond its datasheet is believed.
func TestTimesThatADeviceCannotReachAreLeftOut(t *testing.T) {
	d := NewData()
	// 64 rows are 2.17 us at the datasheet's rate, 128 4.34 us, 192 6.51 us.
	if err := d.Add("x.rec.jsonl", strings.NewReader(gpuRecording(2.17e-6/1.3, 1e-9, 6.51e-6/2.1, 20e-6))); err != nil {
		t.Fatal(err)
	}
	want := "2 points left out, faster than the device can be, the first of gemm on gpu in 1 ns, which takes 2.17 us at 2 times the peak of its datasheet: is the unit of the times another?"
	if len(d.Points) != 2 || d.TooFast != 2 || strings.Join(d.warnings(), "\n") != want {
		t.Errorf("%d points, %d too fast, %q", len(d.Points), d.TooFast, d.warnings())
	}
	if _, err := Fit(d, Options{}); err == nil || !strings.HasSuffix(err.Error(), "; "+want) {
		t.Errorf("nothing to fit: %v", err)
	}
	streaming := NewData()
	if err := streaming.Add("x.rec.jsonl", strings.NewReader(streamingRecording(17.2e-6/2.1, 17.2e-6/1.9))); err != nil {
		t.Fatal(err)
	}
	want = "1 point left out, faster than the device can be, the first of norm on gpu in 8.19 us, which takes 8.59 us at 20 times the memory's rate of its datasheet: is the unit of the times another?"
	if len(streaming.Points) != 1 || strings.Join(streaming.warnings(), "\n") != want {
		t.Errorf("%d points that stream, %q", len(streaming.Points), streaming.warnings())
	}
	none := NewData()
	if err := none.Add("x.rec.jsonl", strings.NewReader(gpuRecording(1e-9))); err != nil {
		t.Fatal(err)
	}
	if err := nothingJudged(nil, none, nil, nil); !strings.HasPrefix(err.Error(), "nothing to judge: 1 point left out, faster than") {
		t.Errorf("nothing to judge: %v", err)
	}
}
