package recorded_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/recorded"
	"github.com/evenkeel/evenkeel/profile/backend/sim"
)

const header = `{"schema":"evenkeel.recording/v1","tool":"test","created":"2026-01-01T00:00:00Z","backend":"import:table","simulated":false,"fingerprint":"f","seed":0,` +
	`"machine":{"host":"","os":"","cpu":"","cores":0,"l1_data_bytes":0,"l2_bytes":0,"l3_bytes":0,"memory_bytes":0},` +
	`"devices":[{"name":"h100","model":"H100","stack":"s","fingerprint":"d","parallel":132,"memory_bytes":1000}],"groups":[]}
`

func gemm(m int) op.GEMM {
	return op.GEMM{Pass: op.Forward, M: units.Tokens(m), N: 128, K: 128, DType: op.BF16}
}

// point is the line of one visit.
func point(m int, times ...float64) string {
	p := profile.Imported("h100", gemm(m), times)
	p.Key, p.Inner = p.Spot.Key("f"), 1
	return line(p)
}

func line(p *profile.Point) string {
	dir, err := os.MkdirTemp("", "line")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "x")
	j, err := doc.OpenJournal(path)
	if err != nil {
		panic(err)
	}
	if err := j.Append(p); err != nil {
		panic(err)
	}
	j.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.rec.jsonl")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, text string) *recorded.Backend {
	t.Helper()
	b, err := recorded.Open([]string{write(t, text)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Every visit replays the next recorded one, and the clock goes by the calls
// and the stated overhead.
func TestTimesAreReplayedOnTheirOwnClock(t *testing.T) {
	b := open(t, header+point(64, 0.25)+point(128, 0.5)+point(64, 0.125))
	x, err := b.Open(t.Context(), "h100", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []units.Seconds{0.25, 0.125, 0.25} {
		start := b.Clock().Now()
		if err := x.Prepare(t.Context(), gemm(64), 1); err != nil {
			t.Fatal(err)
		}
		batch, err := x.Run(t.Context(), 2, 3)
		if err != nil || len(batch.Slowest()) != 3 || batch.Slowest()[2] != want {
			t.Fatalf("%v %v, want %v", batch, err, want)
		}
		spent := b.Clock().Now().Sub(start)
		if cost := recorded.Overhead + time.Duration(6*float64(want)*1e9); spent != cost {
			t.Errorf("the clock moved by %s, want %s", spent, cost)
		}
	}
}

// A line that stands there twice is one visit, as it is to fit, check and show: replayed as
// two, a point would seem to repeat to the last digit.
func TestALineThatStandsThereTwiceIsOneVisit(t *testing.T) {
	began := strings.NewReplacer(`"import:table"`, `"torch"`, `"groups":[]`,
		`"groups":[],"protocol":{"min_samples":1,"min_samples_long":1,"long_s":0.1,"max_samples":9,"noise":0.005,"min_sample_s":0.0005,"point_time_s":1,"wait_limit":0.1,"max_discards":6}`).Replace(header)
	once := began + point(64, 0.25)
	for name, paths := range map[string][]string{
		"copied behind itself": {write(t, once+point(64, 0.25)+point(64, 0.5))},
		"named twice":          {write(t, once), write(t, once+point(64, 0.5))},
		"imported twice":       {write(t, header+point(64, 0.25)), write(t, header+point(64, 0.25)+point(64, 0.5))},
	} {
		b, err := recorded.Open(paths)
		if err != nil {
			t.Fatal(err)
		}
		inv, err := b.Discover(t.Context())
		if err != nil || !slices.ContainsFunc(inv.Notes, func(s string) bool { return strings.Contains(s, "1 line of the recordings stood there already") }) {
			t.Errorf("%s: notes %q, %v", name, inv.Notes, err)
		}
		x, err := b.Open(t.Context(), "h100", "")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []units.Seconds{0.25, 0.5, 0.25} {
			if err := x.Prepare(t.Context(), gemm(64), 1); err != nil {
				t.Fatal(err)
			}
			if batch, err := x.Run(t.Context(), 1, 1); err != nil || batch.Slowest()[0] != want {
				t.Errorf("%s: %v %v, want %v", name, batch, err, want)
			}
		}
	}
}

func TestWhatIsNotRecordedIsUnsupported(t *testing.T) {
	failed := profile.Imported("h100", gemm(256), nil)
	failed.Key, failed.Class, failed.Error = failed.Spot.Key("f"), profile.OutOfMemory, "no memory"
	cut := profile.Imported("h100", gemm(512), nil)
	cut.Key, cut.Class, cut.Error = cut.Spot.Key("f"), profile.Cut, "no answer" // of which nothing is known
	b := open(t, header+point(64, 0.25)+line(failed)+line(cut))
	x, err := b.Open(t.Context(), "h100", "")
	if err != nil {
		t.Fatal(err)
	}
	for m, want := range map[int]profile.Class{65: profile.Unsupported, 256: profile.OutOfMemory, 512: profile.Unsupported} {
		var e *profile.OpError
		if err := x.Prepare(t.Context(), gemm(m), 1); !errors.As(err, &e) || e.Class != want {
			t.Errorf("m=%d: %v, want %s", m, err, want)
		}
	}
	if _, err := b.Open(t.Context(), "b200", ""); err == nil {
		t.Error("a device that is not recorded was opened")
	}
}

func TestRecordingsThatCannotBeReplayed(t *testing.T) {
	other := strings.Replace(header, `"fingerprint":"d"`, `"fingerprint":"e"`, 1)
	simulated := strings.Replace(header, `"simulated":false`, `"simulated":true`, 1)
	for name, c := range map[string]struct {
		texts []string
		want  string
	}{
		"empty":       {[]string{header}, "no point was measured"},
		"torn":        {[]string{""}, "holds no complete line"},
		"two devices": {[]string{header + point(64, 1), other + point(64, 1)}, "another device in an earlier recording"},
		"mixed":       {[]string{header + point(64, 1), simulated + point(64, 1)}, "never replayed together"},
	} {
		var paths []string
		for _, text := range c.texts {
			paths = append(paths, write(t, text))
		}
		if _, err := recorded.Open(paths); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := recorded.Open([]string{filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a file that is not there was opened")
	}
}

// measured collects the lines of a calibration.
type measured struct{ lines []any }

func (m *measured) Append(l any) error { m.lines = append(m.lines, l); return nil }

// A calibration of a replayed calibration measures the same times again, of
// shapes that the first one measured, and stays simulated.
func TestARecordingIsCalibratedAgain(t *testing.T) {
	spec, err := sim.Parse("2xsmall,noise=0")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.rec.jsonl")
	j, err := doc.OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg := profile.Config{Tool: "test", Budget: time.Minute, Seed: 1, PointTimeout: time.Minute, Wall: time.Now}
	past, _ := profile.NewPast()
	if err := profile.Calibrate(t.Context(), sim.New(spec), cfg, past, j, func(profile.Progress) {}); err != nil {
		t.Fatal(err)
	}
	j.Close()
	b, err := recorded.Open([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Points = 8
	past, _ = profile.NewPast()
	var m measured
	if err := profile.Calibrate(t.Context(), b, cfg, past, &m, func(profile.Progress) {}); err != nil {
		t.Fatal(err)
	}
	families := map[string]int{}
	for _, l := range m.lines {
		switch l := l.(type) {
		case profile.Header:
			if !l.Simulated || l.Backend != "recorded" {
				t.Errorf("backend %q, simulated %v", l.Backend, l.Simulated)
			}
		case *profile.Point:
			if !l.OK() {
				t.Errorf("%s: %s", l.Raw, l.Error)
				continue
			}
			truth := float64(spec.True(sim.Truth{}, l.Shape))
			if l.On == "sim_small" {
				truth = float64(spec.True(spec.Devices[0].Truth, l.Shape))
			}
			if math.Abs(l.Times[0]/truth-1) > 1e-6 {
				t.Errorf("%s takes %v, was recorded with %v", l.Raw, l.Times[0], truth)
			}
			if l.T == "point" {
				families[fmt.Sprint(l.On, l.Op, l.Shape.Variant())]++
			}
		}
	}
	for name, n := range families {
		if n > 8 {
			t.Errorf("%s: %d points, 8 were asked for", name, n)
		}
	}
	if len(families) != 18+6 {
		t.Errorf("%d families: %v", len(families), families)
	}
}

func TestInterruptedReplayStops(t *testing.T) {
	b := open(t, header+point(64, 0.25))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	x, err := b.Open(ctx, "h100", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Prepare(ctx, gemm(64), 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
