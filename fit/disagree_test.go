package fit

import (
	"fmt"
	"strings"
	"testing"
)

func TestTimesAgreeWhereMoreThanHalfOfThemDo(t *testing.T) {
	for _, c := range []struct {
		times []float64
		want  bool
	}{
		{[]float64{1}, true},
		{[]float64{1, 1.99}, true},
		{[]float64{2, 1}, false},
		{[]float64{1, 5, 1.1}, true},     // one was slow
		{[]float64{1, 1, 3, 3}, false},   // the median is 2
		{[]float64{1, 1, 3, 3, 3}, true}, // and here 3
		{[]float64{1, 2, 4, 8, 16}, false},
	} {
		if got := agree(c.times); got != c.want {
			t.Errorf("%v agree: %v", c.times, got)
		}
	}
}

// The law's time of an imported point whose rows do not agree is one that nobody measured:
// the recordings, the first such point and its times are named, in one line however many
// there are. Of what was measured here the faster visit stands.
func TestImportedTimesThatDisagreeAreNamed(t *testing.T) {
	at := func(tokens int, times string) string {
		return pointLine("point", rowSpot("norm", tokens), fmt.Sprintf(`"times_s":[%s],"inner":1,"stop":"noise"`, times))
	}
	const way = "; laws take the median, of two times their mean, which nobody measured: see what differs, and import what holds alone"
	for _, c := range []struct {
		name       string
		recordings [][]string
		want       string
		seconds    float64 // of the first point
	}{
		{"two rows", [][]string{{at(64, "1e-5"), at(128, "1e-5"), at(64, "3e-5")}}, "a.rec.jsonl: 1 point took 2 times as long and more at one time than at another: norm (f32) on cpu:1 at tokens 64, width 512 (10 us and 30 us)" + way, 2e-5},
		{"columns of a row", [][]string{{at(64, "1e-5,3e-5"), at(128, "5e-5,2e-5")}}, "a.rec.jsonl: 2 points took 2 times as long and more at one time than at another, such as norm (f32) on cpu:1 at tokens 64, width 512 (10 us and 30 us)" + way, 2e-5},
		{"two recordings", [][]string{{at(64, "1e-5"), at(128, "1e-5")}, {at(64, "2e-5"), at(128, "1.1e-5")}}, "a.rec.jsonl, b.rec.jsonl: 1 point took 2 times as long and more at one time than at another: norm (f32) on cpu:1 at tokens 64, width 512 (10 us and 20 us)" + way, 1.5e-5},
		{"one slow row of three", [][]string{{at(64, "1e-5"), at(64, "5e-5"), at(64, "1.02e-5")}}, "", 1.02e-5},
		{"noise", [][]string{{at(64, "1e-5"), at(64, "1.9e-5")}}, "", 1.45e-5},
	} {
		for backend, want := range map[string]string{"import:table": c.want, "cpu": ""} {
			d := NewData()
			for i, r := range c.recordings {
				if err := d.Add(string(rune('a'+i))+".rec.jsonl", recordingOn(backend, r...)); err != nil {
					t.Fatal(err)
				}
			}
			if got := strings.Join(d.warnings(), "\n"); got != want {
				t.Errorf("%s, %s: warnings %q, want %q", backend, c.name, got, want)
			}
			if got := d.Points[0].Seconds; backend != "cpu" && (got < c.seconds*0.999 || got > c.seconds*1.001) {
				t.Errorf("%s, %s: %v s, want %v", backend, c.name, got, c.seconds)
			}
		}
	}
}
