package fit

import (
	"bytes"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/keyed"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// driftBench is a made-up machine that is recorded again and again.
type driftBench struct {
	canaries    int     // shared points, each visited `visits` times
	plain       int     // points that are no canaries, visited twice
	visits      int     // of a canary
	noise       float64 // deviation of a visit
	scale       func(op.Kind, int) float64
	clock       float64 // Hz; 0: none recorded
	stack       string
	disturbance float64 // share of visits that take twice as long
}

// kinds are the ops that the points of a bench take turns in.
func benchShape(i int) op.Shape {
	switch i % 4 {
	case 0:
		return attentionOf(units.Tokens(1024 * (i + 1)))
	case 1:
		return op.GEMM{Pass: op.Forward, M: units.Tokens(128 * (i + 1)), N: 4096, K: 4096, DType: op.BF16}
	case 2:
		return op.H2D{Copy: op.Copy{Bytes: units.Bytes(1+i) << 20}}
	}
	return op.Norm{Rowwise: op.Rowwise{Tokens: units.Tokens(512 * (i + 1)), Width: 4096, DType: op.BF16}}
}

// record makes the text of a recording.
func (b driftBench) record(t testing.TB, rng *rand.Rand) []byte {
	t.Helper()
	var buf bytes.Buffer
	write := func(v any) {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		buf.Write(append(data, '\n'))
	}
	stack := b.stack
	if stack == "" {
		stack = "v1"
	}
	write(&profile.Header{
		Schema: profile.RecordingSchema, Tool: "test", Created: "2026-01-01T00:00:00Z", Backend: "import:test", Fingerprint: "f" + stack,
		Devices: []op.DeviceType{{Name: "gpu", Model: "a chip", Stack: stack, Fingerprint: "f" + stack, Parallel: 100}},
	})
	visit := func(kind string, i int) {
		shape := benchShape(i)
		seconds := 1e-4 * float64(i+1) * math.Exp(b.noise*rng.NormFloat64())
		if b.scale != nil {
			seconds *= b.scale(shape.Kind(), i)
		}
		if rng.Float64() < b.disturbance {
			seconds *= 2
		}
		p := profile.Imported("gpu", shape, []float64{seconds})
		p.T, p.Key = kind, p.Spot.Key("f"+stack)
		if b.clock > 0 {
			p.Guard.GPU = &profile.GPUGuard{MinSMClock: b.clock, MaxSMClock: b.clock}
		}
		write(p)
	}
	for i := range b.canaries + b.plain {
		visit("point", i)
		if i >= b.canaries {
			visit("again", i)
		}
	}
	for range b.visits {
		for i := range b.canaries {
			visit("canary", i)
		}
	}
	return buf.Bytes()
}

func (b driftBench) run(t testing.TB, rng *rand.Rand) *Run {
	t.Helper()
	r, err := ReadRun("some.rec.jsonl", bytes.NewReader(b.record(t, rng)))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func compared(t testing.TB, runs ...*Run) *DriftReport {
	t.Helper()
	d, err := CompareRuns(runs)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func scaledBy(by float64) func(op.Kind, int) float64 { return func(op.Kind, int) float64 { return by } }

func TestDriftIsFound(t *testing.T) {
	quiet := driftBench{canaries: 10, visits: 5, noise: 0.01}
	for _, c := range []struct {
		name  string
		was   driftBench
		is    func(driftBench) driftBench
		want  DriftVerdict
		moved int // at least
	}{
		{"the same again", quiet, func(b driftBench) driftBench { return b }, Same, 0},
		{"5 % slower", quiet, func(b driftBench) driftBench { b.scale = scaledBy(1.05); return b }, Drifted, 5},
		{"5 % faster", quiet, func(b driftBench) driftBench { b.scale = scaledBy(1 / 1.05); return b }, Drifted, 5},
		{"2 % slower", quiet, func(b driftBench) driftBench { b.scale = scaledBy(1.02); return b }, Same, 0},
		{"one canary", quiet, func(b driftBench) driftBench {
			b.scale = func(_ op.Kind, i int) float64 { return 1 + 0.1*float64(max(0, 1-i)) }
			return b
		}, Ambiguous, 1},
		{"GEMM alone, without canaries", driftBench{plain: 60, noise: 0.005}, func(b driftBench) driftBench {
			b.scale = func(k op.Kind, _ int) float64 {
				if k == op.KindGEMM {
					return 1.08
				}
				return 1
			}
			return b
		}, Drifted, 12},
		{"another stack, the same times", quiet, func(b driftBench) driftBench { b.stack = "v2"; return b }, Drifted, 0},
		{"another stack, other times", quiet, func(b driftBench) driftBench { b.stack, b.scale = "v2", scaledBy(1.2); return b }, Drifted, 9},
		{"struck visits", driftBench{plain: 60, noise: 0.005}, func(b driftBench) driftBench { b.disturbance = 0.1; return b }, Same, 0},
	} {
		rng := rand.New(rand.NewPCG(3, 4))
		d := compared(t, c.was.run(t, rng), c.is(c.was).run(t, rng))
		if d.Verdict != c.want || len(d.Places) != 1 || d.Places[0].Moved < c.moved || d.Places[0].Why == "" {
			t.Errorf("%s: %s, want %s with %d moved: %+v", c.name, d.Verdict, c.want, c.moved, d.Places)
		}
	}
}

// Of 400 pairs of recordings of an unchanged machine at most 1 in 100 alarms,
// and of 200 that became 5 % slower at most 1 in 20 passes for the same,
// whether the shared points are canaries or not and however noisy the machine.
func TestDriftAlarmsAreRareAndMissesToo(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates too much for the race detector")
	}
	for name, b := range map[string]driftBench{
		"canaries, quiet": {canaries: 10, visits: 6, noise: 0.01},
		"canaries, noisy": {canaries: 10, visits: 6, noise: 0.02},
		"two canaries":    {canaries: 2, visits: 6, noise: 0.01},
		"five visits":     {canaries: 12, visits: 4, noise: 0.03},
		"plain points":    {plain: 60, noise: 0.015},
	} {
		rng := rand.New(rand.NewPCG(11, 12))
		alarms, misses := 0, 0
		const still, slowed = 400, 200
		for range still {
			if compared(t, b.run(t, rng), b.run(t, rng)).Verdict == Drifted {
				alarms++
			}
		}
		slow := b
		slow.scale = scaledBy(1.05)
		for range slowed {
			if compared(t, b.run(t, rng), slow.run(t, rng)).Verdict == Same {
				misses++
			}
		}
		t.Logf("%s: %d of %d false alarms, %d of %d misses", name, alarms, still, misses, slowed)
		if alarms > still/100 || misses > slowed/20 {
			t.Errorf("%s: %d of %d false alarms, %d of %d misses", name, alarms, still, misses, slowed)
		}
	}
}

// A time that moved while its cycles stayed is the clock's doing.
func TestCyclesTellHeatFromSoftware(t *testing.T) {
	was := driftBench{canaries: 10, visits: 5, noise: 0.005, clock: 1.98e9}
	for _, c := range []struct {
		name string
		is   driftBench
		want DriftCause
	}{
		{"clocks fell", driftBench{canaries: 10, visits: 5, noise: 0.005, clock: 1.8e9, scale: scaledBy(1.1)}, CauseClock},
		{"clocks stayed", driftBench{canaries: 10, visits: 5, noise: 0.005, clock: 1.98e9, scale: scaledBy(1.1)}, CauseSoftware},
		{"no clocks", driftBench{canaries: 10, visits: 5, noise: 0.005, scale: scaledBy(1.1)}, CauseUnknown},
		{"nothing moved", driftBench{canaries: 10, visits: 5, noise: 0.005, clock: 1.98e9}, ""},
	} {
		rng := rand.New(rand.NewPCG(1, 1))
		if d := compared(t, was.run(t, rng), c.is.run(t, rng)); d.Places[0].Cause != c.want {
			t.Errorf("%s: %q, want %q", c.name, d.Places[0].Cause, c.want)
		}
	}
}

// Another fingerprint is an alarm at once, of a device, of a device of a group, or of the whole
// environment; that other devices are there or are not is none for those that both have.
func TestAnotherFingerprintIsADrift(t *testing.T) {
	const group = "2 gpu over nvlink"
	record := func(fingerprint, backend, gpu string, second bool) *Run {
		var buf bytes.Buffer
		write := func(v any) {
			data, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			buf.Write(append(data, '\n'))
		}
		h := &profile.Header{
			Schema: profile.RecordingSchema, Tool: "test", Created: "2026-01-01T00:00:00Z", Backend: backend, Fingerprint: fingerprint,
			Devices: []op.DeviceType{{Name: "gpu", Model: "a chip", Fingerprint: gpu, Parallel: 100}},
			Groups:  []op.GroupType{op.NewGroupType([]op.Member{{Device: "gpu", Count: 2}}, 1, "nvlink")},
		}
		if second {
			h.Devices = append(h.Devices, op.DeviceType{Name: "gpu2", Model: "another", Fingerprint: "x", Parallel: 100})
		}
		write(h)
		visit := func(on string, s op.Shape) {
			p := profile.Imported(on, s, []float64{1e-3})
			p.Key = p.Spot.Key(fingerprint)
			write(p)
		}
		for i := range 6 {
			visit("gpu", benchShape(4*i))
			visit(group, op.AllReduce{Message: op.Message{Group: 2, Bytes: units.Bytes(1+i) << 20}})
		}
		r, err := ReadRun("some.rec.jsonl", &buf)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	was := record("f1", "import:test", "g1", false)
	for _, c := range []struct {
		name string
		is   *Run
		want DriftVerdict
	}{
		{"the same", record("f1", "import:test", "g1", false), Same},
		{"a device's", record("f2", "import:test", "g2", false), Drifted},
		{"a device's alone", record("f1", "import:test", "g2", false), Drifted},
		{"that of the whole alone, as in another order", record("f2", "import:test", "g1", false), Same},
		{"another backend", record("f2", "import:other", "g1", false), Drifted},
		{"one more device", record("f2", "import:test", "g1", true), Same},
		{"one more device, another fingerprint", record("f2", "import:test", "g2", true), Drifted},
	} {
		d := compared(t, was, c.is)
		if d.Verdict != c.want || len(d.Places) != 2 {
			t.Errorf("%s: %s on %d places, want %s", c.name, d.Verdict, len(d.Places), c.want)
		}
		for _, p := range d.Places {
			alarm := c.want == Drifted
			if p.Verdict != c.want || (p.Cause == CauseEnvironment) != alarm || strings.Contains(p.Why, "fingerprint") != alarm {
				t.Errorf("%s: %s is %s for %q: %s", c.name, p.On, p.Verdict, p.Cause, p.Why)
			}
		}
	}
	// A series in which one recording alone was of another environment, and the last moved.
	b := driftBench{canaries: 8, visits: 5, noise: 0.003}
	rng := rand.New(rand.NewPCG(8, 9))
	first, other := b.run(t, rng), b
	other.stack, b.scale = "v2", scaledBy(1.06)
	if d := compared(t, first, other.run(t, rng), b.run(t, rng)); d.Verdict != Ambiguous {
		t.Errorf("the last moved, the one before was of another environment: %s, want ambiguous: %+v", d.Verdict, d.Places)
	}
	b.scale = nil
	if d := compared(t, first, b.run(t, rng), other.run(t, rng)); d.Verdict != Drifted {
		t.Errorf("the last is of another environment: %s, want drift: %+v", d.Verdict, d.Places)
	}
}

func TestEnvironmentsAreCompared(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	b := driftBench{canaries: 4, visits: 5}
	d := compared(t, b.run(t, rng), driftBench{canaries: 4, visits: 5, stack: "v2"}.run(t, rng))
	want := []Difference{{"fingerprint", "fv1", "fv2"}, {"gpu.stack", "v1", "v2"}, {"gpu.fingerprint", "fv1", "fv2"}}
	if !slices.Equal(d.Environment, want) {
		t.Errorf("%+v", d.Environment)
	}
}

// In a series one recording that moved is not yet a drift, two are, and what
// creeps up by 1 % a recording is found before it reaches much.
func TestSeriesOfRecordings(t *testing.T) {
	for _, c := range []struct {
		name   string
		scales []float64 // of the recordings after the first
		want   DriftVerdict
	}{
		{"quiet", []float64{1, 1.01, 0.99, 1}, Same},
		{"the last alone", []float64{1, 1, 1, 1.06}, Ambiguous},
		{"the last two", []float64{1, 1, 1.06, 1.06}, Drifted},
		{"back again", []float64{1.08, 1.08, 1.08, 1}, Ambiguous},
		{"back, and a little faster", []float64{1.2, 1.2, 0.98, 0.98}, Ambiguous},
		{"creeping", []float64{1.01, 1.02, 1.025, 1.028, 1.029, 1.029, 1.029}, Drifted},
	} {
		rng := rand.New(rand.NewPCG(8, 9))
		b := driftBench{canaries: 8, visits: 5, noise: 0.003}
		runs := []*Run{b.run(t, rng)}
		for _, s := range c.scales {
			b.scale = scaledBy(s)
			runs = append(runs, b.run(t, rng))
		}
		d := compared(t, runs...)
		if d.Verdict != c.want || len(d.Places[0].Series.Shifts) != len(c.scales) {
			t.Errorf("%s: %s, want %s: %+v, %+v", c.name, d.Verdict, c.want, d.Places[0].Why, d.Places[0].Series)
		}
	}
	// By hand: shifts of 4 %, 4 %: EWMA 0.3*4 = 1.2, then 0.3*4+0.7*1.2 = 2.04; CUSUM 2*(4-1.5) = 5.
	s := newSeries([]float64{0.04, 0.04})
	if math.Abs(s.EWMA-0.0204) > 1e-12 || math.Abs(s.CUSUMUp-0.05) > 1e-12 || s.CUSUMDn != 0 {
		t.Errorf("%+v", s)
	}
}

func TestRecordingsThatCannotBeCompared(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	b := driftBench{canaries: 4, visits: 2, noise: 0.01}
	one := b.run(t, rng)
	if _, err := CompareRuns([]*Run{one}); err == nil || !strings.Contains(err.Error(), "drift needs two") {
		t.Errorf("%v", err)
	}
	text := string(b.record(t, rng))
	other, err := ReadRun("other.rec.jsonl", strings.NewReader(strings.Replace(text, "a chip", "another chip", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := CompareRuns([]*Run{one, other}); err == nil || !strings.Contains(err.Error(), "gpu is another device in other.rec.jsonl (another chip)") {
		t.Errorf("%v", err)
	}
	fingerprint := regexp.MustCompile(`"fingerprint":"([^"]*)"`).FindStringSubmatch(text)[1]
	var renamed strings.Builder
	for line := range strings.Lines(strings.ReplaceAll(text, `"gpu"`, `"gpu2"`)) {
		renamed.WriteString(keyed.Line(fingerprint, line))
	}
	apart, err := ReadRun("apart.rec.jsonl", strings.NewReader(renamed.String()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := CompareRuns([]*Run{one, apart}); err == nil || !strings.Contains(err.Error(), "no two points in common") {
		t.Errorf("%v", err)
	}
}

// FuzzReadRun: whatever is read can be compared with itself, and is the same.
func FuzzReadRun(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 1))
	f.Add(driftBench{canaries: 2, visits: 1}.record(f, rng))
	f.Add(driftBench{plain: 3, clock: 1e9}.record(f, rng))
	f.Add([]byte(`{"schema":"evenkeel.recording/v1"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		run, err := ReadRun("fuzz.rec.jsonl", bytes.NewReader(data))
		if err != nil {
			return
		}
		d, err := CompareRuns([]*Run{run, run})
		if err != nil {
			return
		}
		if d.Verdict != Same || len(d.Environment) > 0 {
			t.Fatalf("a recording drifted from itself: %+v", d)
		}
	})
}
