package profile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/sim"
)

func config(budget time.Duration) profile.Config {
	return profile.Config{Tool: "test", Budget: budget, Seed: 1, PointTimeout: time.Minute, Wall: time.Now}
}

func silent(profile.Progress) {}

// calibrate runs a calibration of a simulated cluster into a file, going on
// with what the file holds.
func calibrate(t *testing.T, ctx context.Context, path, spec string, cfg profile.Config, report func(profile.Progress)) error {
	t.Helper()
	c, err := sim.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	j, err := doc.OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	past, visitor := profile.NewPast()
	if j.Size() > 0 {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := profile.Read(path, bytes.NewReader(data), visitor); err != nil {
			t.Fatal(err)
		}
	}
	return profile.Calibrate(ctx, sim.New(c), cfg, past, j, report)
}

// content is what a recording holds.
type content struct {
	profile.Tally
	schedule *profile.Schedule
	points   []*profile.Point
	end      profile.EndReason
}

func read(t *testing.T, path string) content {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var c content
	c.Tally, err = profile.Read(path, bytes.NewReader(data), profile.Visitor{
		Schedule: func(s *profile.Schedule) error { c.schedule = s; return nil },
		Point:    func(p *profile.Point) error { c.points = append(c.points, p); return nil },
		End:      func(e *profile.End) error { c.end = e.Reason; return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCalibrateMeasuresEveryFamilyWithinItsBudget(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.rec.jsonl")
	if err := calibrate(t, t.Context(), path, "1xbig+1xsmall", config(time.Minute), silent); err != nil {
		t.Fatal(err)
	}
	c := read(t, path)
	if c.Failed > 0 || c.Torn || c.Canaries == 0 || c.end == "" {
		t.Errorf("%+v, end %q", c.Tally, c.end)
	}
	if done := float64(c.Points) / float64(len(c.schedule.Points)); done < 0.7 {
		t.Errorf("only %d of %d scheduled points fitted into the budget", c.Points, len(c.schedule.Points))
	}
	families := map[string]int{}
	for _, p := range c.points {
		families[fmt.Sprint(p.On, p.Op, p.Shape.Variant())]++
		if p.Stop == "" || p.Inner < 1 || len(p.Times) < 3 {
			t.Errorf("%s: stop %q, inner %d, %d samples", p.Raw, p.Stop, p.Inner, len(p.Times))
		}
		if g, ok := p.Shape.(op.Grouped); ok && len(p.RankTimes) != g.Ranks() {
			t.Errorf("%s: times of %d ranks", p.Raw, len(p.RankTimes))
		}
	}
	for name, n := range families {
		if n < 5 {
			t.Errorf("%s: %d points", name, n)
		}
	}
	// 18 families a device, 6 of the group.
	if len(families) != 2*18+6 {
		t.Errorf("%d families: %v", len(families), families)
	}
}

func TestCalibrationIsTheSameForTheSameSeed(t *testing.T) {
	dir := t.TempDir()
	var recorded [2][]byte
	for i := range recorded {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := calibrate(t, t.Context(), path, "1xbig", config(20*time.Second), silent); err != nil {
			t.Fatal(err)
		}
		recorded[i], _ = os.ReadFile(path)
	}
	if !bytes.Equal(recorded[0], recorded[1]) {
		t.Error("two runs of the simulated backend differ")
	}
}

// A journal cut off anywhere, as by kill -9, goes on where it stopped: no
// acknowledged point is lost and none is measured twice.
func TestResumeAfterACutAnywhere(t *testing.T) {
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	cfg := config(20 * time.Second)
	if err := calibrate(t, t.Context(), whole, "1xbig", cfg, silent); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(7, 0))
	for i := range 30 {
		cut := r.IntN(len(data))
		path := filepath.Join(dir, fmt.Sprintf("cut%d", i))
		if err := os.WriteFile(path, data[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		acknowledged := keysOf("point", data[:bytes.LastIndexByte(data[:cut], '\n')+1])
		if err := calibrate(t, t.Context(), path, "1xbig", cfg, silent); err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		after, _ := os.ReadFile(path)
		if keys := keysOf("point", after); !slices.Equal(keys[:len(acknowledged)], acknowledged) {
			t.Errorf("cut at %d: acknowledged points are lost", cut)
		}
		for _, kind := range []string{"point", "again"} { // first and second visits
			keys := slices.Sorted(slices.Values(keysOf(kind, after)))
			if n := len(slices.Compact(slices.Clone(keys))); n != len(keys) || n == 0 {
				t.Errorf("cut at %d: %d lines %q for %d points", cut, len(keys), kind, n)
			}
		}
		if c := read(t, path); c.end == "" || len(c.points) < len(c.schedule.Points)*7/10 {
			t.Errorf("cut at %d: ended %q with %d of %d points", cut, c.end, len(c.points), len(c.schedule.Points))
		}
	}
}

// keysOf finds the keys of lines of a kind without the package's own reader.
func keysOf(kind string, data []byte) []string {
	var keys []string
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, `{"t":"`+kind+`","key":"`); ok {
			key, _, _ := strings.Cut(rest, `"`)
			keys = append(keys, key)
		}
	}
	return keys
}

func TestInterruptKeepsWhatWasMeasured(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	ctx, cancel := context.WithCancel(t.Context())
	points := 0
	err := calibrate(t, ctx, path, "1xbig", config(20*time.Second), func(p profile.Progress) {
		if p.Point != nil {
			if points++; points == 17 {
				cancel()
			}
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if c := read(t, path); len(c.points) != 17 || c.end != "" {
		t.Errorf("%d points, end %q", len(c.points), c.end)
	}
	if err := calibrate(t, t.Context(), path, "1xbig", config(20*time.Second), silent); err != nil {
		t.Fatal(err)
	}
	if c := read(t, path); c.end == "" {
		t.Error("the resumed run did not come to its end")
	}
}

func TestAnotherMachineIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := calibrate(t, t.Context(), path, "1xbig", config(20*time.Second), silent); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(path)
	err := calibrate(t, t.Context(), path, "1xsmall", config(20*time.Second), silent)
	if err == nil || !strings.Contains(err.Error(), "another machine or software stack") {
		t.Errorf("got %v", err)
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("the refused run changed the recording")
	}
}

func TestFaultsAreRecordedAndMeasuringGoesOn(t *testing.T) {
	for spec, want := range map[string]profile.Class{
		"1xbig,fail=0.2":  profile.Crashed,
		"1xbig,hang=0.05": profile.Hung, // never run again, so three in a row end the run sooner
	} {
		path := filepath.Join(t.TempDir(), "x")
		if err := calibrate(t, t.Context(), path, spec, config(20*time.Second), silent); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
		c := read(t, path)
		if c.Failed == 0 || c.Points-c.Failed < 100 {
			t.Errorf("%s: %+v", spec, c.Tally)
		}
		for _, p := range c.points {
			if !p.OK() && (p.Class != want || p.Error == "") {
				t.Errorf("%s: class %q, error %q", spec, p.Class, p.Error)
			}
		}
	}
}

func TestAKernelThatIsWrongIsNeverTimed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := calibrate(t, t.Context(), path, "1xbig,wrong=gemm", config(20*time.Second), silent); err != nil {
		t.Fatal(err)
	}
	wrong := 0
	for _, p := range read(t, path).points {
		if p.Op == op.KindGEMM && p.OK() {
			t.Errorf("timed: %s", p.Raw)
		}
		if p.Class == profile.Wrong {
			wrong++
		}
	}
	if wrong != 3 { // once for each pass, when it was piloted
		t.Errorf("%d points of class wrong", wrong)
	}
}

func TestAMachineThatOnlyFailsStopsTheRun(t *testing.T) {
	for spec, want := range map[string]string{
		"1xbig,fail=0.7": "the workers died three times in a row, at last of ",
		"1xbig,fail=1":   "no op could be run at all: attn_fwd on sim_big: crashed: worker crashed (requested); nor could any other of 18 families of shapes",
	} {
		path := filepath.Join(t.TempDir(), "x")
		err := calibrate(t, t.Context(), path, spec, config(20*time.Second), silent)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", spec, err, want)
		}
		read(t, path) // still a valid recording
	}
}

// lacking cannot run some ops at all.
type lacking struct {
	*sim.Backend
	kinds []op.Kind
}

type lackingExecutor struct {
	profile.Executor
	lacking
}

func (b lacking) Open(ctx context.Context, on, place string) (profile.Executor, error) {
	x, err := b.Backend.Open(ctx, on, place)
	return lackingExecutor{x, b}, err
}

func (x lackingExecutor) Prepare(ctx context.Context, s op.Shape, seed uint64) error {
	if slices.Contains(x.kinds, s.Kind()) {
		return &profile.OpError{Class: profile.Unsupported, Err: errors.New("requested")}
	}
	return x.Executor.Prepare(ctx, s, seed)
}

// Families that cannot run at all are found out by their pilots, and say nothing against
// the points of the others.
func TestFailedPilotsDoNotStopTheRun(t *testing.T) {
	spec, err := sim.Parse("1xbig")
	if err != nil {
		t.Fatal(err)
	}
	b := lacking{sim.New(spec), []op.Kind{op.KindAttnFwd, op.KindAttnBwd, op.KindNorm, op.KindRope, op.KindGELU}}
	path := filepath.Join(t.TempDir(), "x")
	j, err := doc.OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	past, _ := profile.NewPast()
	if err := profile.Calibrate(t.Context(), b, config(30*time.Second), past, j, silent); err != nil {
		t.Error(err)
	}
	if c := read(t, path); c.Failed < 10 || c.end == "" || c.Points-c.Failed < 60 {
		t.Errorf("%d points, %d failed, ended by %q: want the points of all families that can run", c.Points, c.Failed, c.end)
	}
}

func TestThrottledSamplesAreDiscarded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := calibrate(t, t.Context(), path, "1xbig,throttle=0.2,noise=0", config(20*time.Second), silent); err != nil {
		t.Fatal(err)
	}
	discarded := 0
	for _, p := range read(t, path).points {
		discarded += p.Discarded
		if slices.Max(p.Times) > 2*slices.Min(p.Times) {
			t.Fatalf("%s: a throttled sample was kept: %v", p.Raw, p.Times)
		}
	}
	if discarded == 0 {
		t.Error("nothing was discarded")
	}
	always := filepath.Join(t.TempDir(), "y")
	_ = calibrate(t, t.Context(), always, "1xbig,throttle=1", config(20*time.Second), silent)
	throttled := 0
	for _, p := range read(t, always).points {
		if p.OK() {
			t.Fatalf("%s: stored a time although every sample was throttled", p.Raw)
		}
		if p.Class == profile.Throttled {
			throttled++
		}
	}
	if throttled == 0 {
		t.Error("no point of class throttled")
	}
}

func TestABudgetThatIsTooShortNamesOneThatIsNot(t *testing.T) {
	err := calibrate(t, t.Context(), filepath.Join(t.TempDir(), "x"), "1xbig", config(time.Second), silent)
	want := "--budget: 1 s is too short for 18 families of shapes: pass --budget 13s or more, or --only to measure fewer ops"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	cfg := config(20 * time.Second)
	cfg.Only = []op.Kind{op.KindH2D}
	if err := calibrate(t, t.Context(), filepath.Join(t.TempDir(), "y"), "1xbig", cfg, silent); err == nil || !strings.Contains(err.Error(), "nothing to measure") {
		t.Errorf("got %v", err)
	}
}

// full fails every append after the first few, as a full disk does.
type full struct{ left int }

func (f *full) Append(any) error {
	if f.left--; f.left < 0 {
		return errors.New("out/x.rec.jsonl: no space left on device")
	}
	return nil
}

func TestAFullDiskStopsTheRun(t *testing.T) {
	c, _ := sim.Parse("1xbig")
	past, _ := profile.NewPast()
	err := profile.Calibrate(t.Context(), sim.New(c), config(20*time.Second), past, &full{left: 5}, silent)
	if err == nil || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("got %v", err)
	}
}

// faulty fails the first tries of one op with a class, and counts them.
type faulty struct {
	*sim.Backend
	kind   op.Kind
	class  profile.Class
	lost   bool
	strike int // fails the first so many tries
	tries  map[string]int
}

type faultyExecutor struct {
	profile.Executor
	*faulty
}

func (b *faulty) Open(ctx context.Context, on, place string) (profile.Executor, error) {
	x, err := b.Backend.Open(ctx, on, place)
	return faultyExecutor{x, b}, err
}

func (x faultyExecutor) Prepare(ctx context.Context, s op.Shape, seed uint64) error {
	if s.Kind() == x.kind {
		key := profile.NewSpot("", s).Key("")
		if x.tries[key]++; x.tries[key] <= x.strike {
			return &profile.OpError{Class: x.class, Lost: x.lost, Err: errors.New("requested")}
		}
	}
	return x.Executor.Prepare(ctx, s, seed)
}

// What may be the worker's fault is tried once more on a fresh one; what never
// changes, and what costs a whole deadline, is never run again.
func TestHowOftenAFailingPointIsTried(t *testing.T) {
	for _, c := range []struct {
		class  profile.Class
		lost   bool
		strike int
		tries  int  // of the pilot's shape, whose first failure drops the family
		good   bool // it was measured in the end
	}{
		{profile.OutOfMemory, false, 1, 0, true},
		{profile.Crashed, true, 1, 0, true},
		{profile.Unsupported, false, 1e6, 1, false},
		{profile.Hung, true, 1e6, 1, false},
		{profile.Failed, false, 1e6, 1, false},
		{profile.OutOfMemory, false, 1e6, 2, false},
	} {
		spec, err := sim.Parse("1xbig")
		if err != nil {
			t.Fatal(err)
		}
		// The pilot of the op passes: its shape is known to have been tried.
		b := &faulty{Backend: sim.New(spec), kind: op.KindAdamW, class: c.class, lost: c.lost, strike: c.strike, tries: map[string]int{}}
		pilot := profile.NewSpot("", op.AdamW{Params: int64(profile.LogScale(0.35, 1<<12, 65536*16384))}).Key("")
		b.tries[pilot] = 1e9
		path := filepath.Join(t.TempDir(), "x")
		j, err := doc.OpenJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		past, _ := profile.NewPast()
		cfg := config(20 * time.Second)
		cfg.Only = []op.Kind{op.KindAdamW, op.KindGEMM, op.KindNorm, op.KindRope, op.KindSwiGLU, op.KindAttnFwd}
		err = profile.Calibrate(t.Context(), b, cfg, past, j, silent)
		j.Close()
		if err != nil && c.strike == 1 {
			t.Errorf("%+v: %v", c, err)
		}
		var adamw []*profile.Point
		for _, p := range read(t, path).points {
			if p.Op == op.KindAdamW {
				adamw = append(adamw, p)
			}
		}
		if len(adamw) == 0 {
			t.Fatalf("%+v: no points", c)
		}
		for _, p := range adamw {
			if p.OK() != c.good {
				t.Errorf("%+v: class %q", c, p.Class)
			}
			if n := b.tries[profile.NewSpot("", p.Shape).Key("")]; !c.good && n != c.tries {
				t.Errorf("%+v: tried %d times", c, n)
			}
		}
	}
}

// Every device of a type but the first is compared with it at a few points.
func TestOtherDevicesOfATypeAreMeasured(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := calibrate(t, t.Context(), path, "3xbig,slow=n0/g2:1.22,noise=0.01", config(time.Minute), silent); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	own, peers := map[string]float64{}, map[string]int{}
	tally, err := profile.Read(path, bytes.NewReader(data), profile.Visitor{
		Point: func(p *profile.Point) error {
			if p.OK() && p.On == "sim_big" {
				own[p.Key] = p.Times[0]
			}
			return nil
		},
		Peer: func(p *profile.Point) error {
			peers[p.Place]++
			ratio, want := p.Times[0]/own[p.Key], 1.0
			if p.Place == "n0/g2" {
				want = 1.22
			}
			if ratio < 0.93*want || ratio > 1.07*want {
				t.Errorf("%s: %s takes %.2f of the first device's time, want %.2f", p.Place, p.Op, ratio, want)
			}
			return nil
		},
	})
	if err != nil || tally.Peers != 8 || len(peers) != 2 || peers["n0/g1"] != 4 {
		t.Errorf("%+v %v %v", tally, peers, err)
	}
}

// unguarded is a backend whose hardware cannot be watched.
type unguarded struct{ *sim.Backend }

func (b unguarded) Discover(ctx context.Context) (*profile.Inventory, error) {
	inv, err := b.Backend.Discover(ctx)
	inv.Unguarded = true
	inv.Others = []profile.Machine{{Host: "another"}}
	return inv, err
}

// Where nothing tells whether the hardware slowed itself down, canaries come
// more often; and every machine of a job is in the recording.
func TestCanariesComeMoreOftenWhereNothingElseTells(t *testing.T) {
	spec, err := sim.Parse("1xbig")
	if err != nil {
		t.Fatal(err)
	}
	canaries := map[bool]int{}
	for _, blind := range []bool{false, true} {
		var b profile.Backend = sim.New(spec)
		if blind {
			b = unguarded{sim.New(spec)}
		}
		past, _ := profile.NewPast()
		var j recorded
		if err := profile.Calibrate(t.Context(), b, config(20*time.Second), past, &j, silent); err != nil {
			t.Fatal(err)
		}
		for _, l := range j {
			if p, ok := l.(*profile.Point); ok && p.T == "canary" {
				canaries[blind]++
			}
		}
		if h := j[0].(profile.Header); blind && (len(h.Others) != 1 || h.Others[0].Host != "another") {
			t.Errorf("other machines: %+v", h.Others)
		}
	}
	if canaries[true] < 2*canaries[false] || canaries[false] == 0 {
		t.Errorf("canaries: %d guarded, %d unguarded", canaries[false], canaries[true])
	}
}

type recorded []any

func (r *recorded) Append(line any) error { *r = append(*r, line); return nil }

// What there is no time for is in the recording, and every family is either there
// or scheduled.
func TestWhatThereIsNoTimeForIsRecorded(t *testing.T) {
	if testing.Short() {
		t.Skip("chooses among long calls for seconds")
	}
	path := filepath.Join(t.TempDir(), "x.rec.jsonl")
	made, err := sim.Parse("1xbig,slow=n0/g0:2")
	if err != nil {
		t.Fatal(err)
	}
	made.SlowBy = 200000
	j, err := doc.OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	past, _ := profile.NewPast()
	if err := profile.Calibrate(t.Context(), sim.New(made), config(time.Minute), past, j, silent); err != nil {
		t.Fatal(err)
	}
	c := read(t, path)
	name := func(s profile.Spot) string { return fmt.Sprint(s.On, s.Op, s.Shape.Variant()) }
	scheduled, left := map[string]bool{}, map[string]bool{}
	for _, s := range c.schedule.Points {
		scheduled[name(s)] = true
	}
	for _, p := range c.points {
		if p.Class != profile.TooLong {
			continue
		}
		left[name(p.Spot)] = true
		if scheduled[name(p.Spot)] || !strings.Contains(p.Error, "budget of 1m0s") {
			t.Errorf("%s: scheduled %v, %q", p.Raw, scheduled[name(p.Spot)], p.Error)
		}
	}
	if len(left) == 0 || len(scheduled) == 0 || len(left)+len(scheduled) != 18 {
		t.Errorf("%d families scheduled, %d left out, want 18 in all and some of both", len(scheduled), len(left))
	}
}
