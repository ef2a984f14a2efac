package results

import (
	"bytes"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
)

func figures(t *testing.T, r *fit.Report) map[string]*Figure {
	t.Helper()
	scatter, err := MeasuredPredicted(r, "measured against predicted, cpu:1")
	if err != nil {
		t.Fatal(err)
	}
	residuals, err := Residuals(r, "residuals, cpu:1")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]*Figure{"scatter": scatter, "residuals": residuals}
}

// Residuals point where the biases of the tables do: up is predicted too long.
func TestResidualsHaveTheSignOfTheTables(t *testing.T) {
	r := testReport(40)
	r.Pairs = r.Pairs[:1]
	r.Pairs[0].Estimate.Mid = units.Seconds(2 * r.Pairs[0].Measured)
	f, err := Residuals(r, "x")
	if err != nil {
		t.Fatal(err)
	}
	if label := f.plot.Y.Label.Text; !strings.HasPrefix(label, "log(predicted / measured)") {
		t.Errorf("the axis is called %q", label)
	}
	if x, y := residual(f.pairs[0]); x != r.Pairs[0].Measured || math.Abs(y-math.Log(2)) > 1e-12 {
		t.Errorf("a point predicted at twice its time is drawn at %v, want %v", y, math.Log(2))
	}
}

// TestPlotsAreDeterministic also leaves the plots in $EVENKEEL_PLOTS, to be
// looked at: no test sees whether they are readable.
func TestPlotsAreDeterministic(t *testing.T) {
	var first map[string][]byte
	for range 2 {
		got := map[string][]byte{}
		for name, f := range figures(t, testReport(40)) {
			var s, p bytes.Buffer
			if err := WriteSVG(&s, f); err != nil {
				t.Fatal(err)
			}
			if err := WritePNG(&p, f); err != nil {
				t.Fatal(err)
			}
			got[name+".svg"], got[name+".png"] = s.Bytes(), p.Bytes()
		}
		if first == nil {
			first = got
		}
		for name, data := range got {
			if len(data) == 0 || !bytes.Equal(data, first[name]) {
				t.Errorf("%s: %d bytes, differing from those of the same report before", name, len(data))
			}
		}
	}
	if dir := os.Getenv("EVENKEEL_PLOTS"); dir != "" {
		for name, data := range first {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestPNGIsNotBlank looks for the five families' colours among the pixels.
func TestPNGIsNotBlank(t *testing.T) {
	for name, f := range figures(t, testReport(40)) {
		var buf bytes.Buffer
		if err := WritePNG(&buf, f); err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(&buf)
		if err != nil {
			t.Fatal(err)
		}
		colours := map[[3]uint32]bool{}
		for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y++ {
			for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
				r, g, b, _ := img.At(x, y).RGBA()
				colours[[3]uint32{r >> 13, g >> 13, b >> 13}] = true
			}
		}
		// Five families, two bands, text and its smoothing; a blank page has one.
		if len(colours) < 20 {
			t.Errorf("%s: %d distinct colours", name, len(colours))
		}
	}
}

// Texts of an SVG are as wide as they were laid out for, whatever font they are shown in.
func TestSVGFitsAnyFont(t *testing.T) {
	for name, f := range figures(t, testReport(40)) {
		var buf bytes.Buffer
		if err := WriteSVG(&buf, f); err != nil {
			t.Fatal(err)
		}
		caption := regexp.MustCompile(`<text textLength="([0-9.]+)" lengthAdjust="spacingAndGlyphs" [^>]*>n = 200, median error[^<]*</text>`).FindStringSubmatch(buf.String())
		if caption == nil {
			t.Fatalf("%s: the caption has no width", name)
		}
		want := sans(8, ink()).Width(f.caption[strings.Index(f.caption, "n = 200"):]).Points()
		if got, _ := strconv.ParseFloat(caption[1], 64); got > want*1.001 || got < want/2 { // it may be broken into lines
			t.Errorf("%s: the caption is to be %v pt wide, in its font it is %v", name, got, want)
		}
		if n, fitted := strings.Count(buf.String(), "<text "), strings.Count(buf.String(), "<text textLength="); n != fitted {
			t.Errorf("%s: %d of %d texts have a width", name, fitted, n)
		}
	}
}

// TestSVGSaysWhatItShows: stamp, axes, families and caption are text.
func TestSVGSaysWhatItShows(t *testing.T) {
	for name, f := range figures(t, testReport(40)) {
		var buf bytes.Buffer
		if err := WriteSVG(&buf, f); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"SIMULATED: ", "measured time", "1 ms", "attention (n = 40", "collective (n = 40", "within 10 %", "layer (n = 40", "n = 200, median error", "no hardware was measured"} {
			if !strings.Contains(buf.String(), want) {
				t.Errorf("%s lacks %q", name, want)
			}
		}
	}
	measured := testReport(3)
	measured.Simulated = false
	if f := figures(t, measured)["scatter"]; strings.Contains(f.title+f.caption, "imulated") || strings.Contains(f.title, "SIMULATED") {
		t.Errorf("a measured report is called simulated: %q, %q", f.title, f.caption)
	}
}

func TestPlotsOfStrangePoints(t *testing.T) {
	for _, r := range []*fit.Report{{}, {Pairs: []fit.Pair{{Family: fit.FamilyGEMM, Measured: math.NaN()}, {Family: fit.FamilyGEMM, Measured: -1, Estimate: costmodel.Estimate{Mid: 1}}, {Family: fit.FamilyGEMM, Measured: 1}}}} {
		if _, err := MeasuredPredicted(r, "x"); err == nil || !strings.Contains(err.Error(), "evenkeel check") {
			t.Errorf("scatter of nothing: %v", err)
		}
		if _, err := Residuals(r, "x"); err == nil {
			t.Error("residuals of nothing: no error")
		}
	}
	one := &fit.Report{Pairs: []fit.Pair{
		{Family: fit.FamilyCollective, Measured: 3e-3, Estimate: costmodel.Estimate{Lo: 1e-3, Mid: 1e-3, Hi: 1e-3, Source: costmodel.Extrapolated}},
		{Family: fit.FamilyGEMM, Measured: math.Inf(1), Estimate: costmodel.Estimate{Mid: 1}},
	}}
	for name, f := range figures(t, one) {
		var buf bytes.Buffer
		if err := WritePNG(&buf, f); err != nil || buf.Len() == 0 {
			t.Errorf("%s: %v", name, err)
		}
		if want := "n = 1; hollow: 1 outside the fitted range, not in these numbers; 1 without positive times left out"; f.caption != want {
			t.Errorf("caption %q, want %q", f.caption, want)
		}
	}
}

func TestTicks(t *testing.T) {
	labels := func(lo, hi float64) string {
		var s []string
		for _, k := range timeTicks(lo, hi) {
			if k.Label != "" {
				s = append(s, k.Label)
			}
		}
		return strings.Join(s, ",")
	}
	if got, want := labels(0.8e-6, 1.2e-3), "1 us,10 us,100 us,1 ms"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := labels(0.9, 11), "1 s,2 s,5 s,10 s"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, hi := range []float64{0.25, 0.4, 1, 5, 40} {
		ticks := percentTicks(-hi, hi)
		zero := false
		for _, k := range ticks {
			zero = zero || k.Label == "0 %" && k.Value == 0
		}
		if len(ticks) < 4 || len(ticks) > 10 || !zero {
			t.Errorf("+-%v: %v", hi, ticks)
		}
	}
}
