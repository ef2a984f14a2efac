package fit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	replay "github.com/evenkeel/evenkeel/profile/backend/recorded"
)

// on names where a table's law holds.
func (r recorded) on() string {
	if r.group.Name != "" {
		return r.group.Name
	}
	return r.device.Name
}

// write makes a recording of a table.
func (r recorded) write(t testing.TB) string {
	path := filepath.Join(t.TempDir(), "table.rec.jsonl")
	h := profile.Header{Schema: profile.RecordingSchema, Backend: "import:table", Fingerprint: "table", Devices: []op.DeviceType{r.device}, Groups: []op.GroupType{}}
	if r.group.Name != "" {
		h.Groups = append(h.Groups, r.group)
	}
	err := doc.WriteLines(path, func(line func(any) error) error {
		if err := line(h); err != nil {
			return err
		}
		for _, p := range r.points {
			for _, v := range p.visits {
				q := profile.Imported(r.on(), p.Shape, []float64{v})
				q.Key = q.Spot.Key(h.Fingerprint)
				if err := line(q); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// collected keeps the points of a calibration.
type collected struct{ points []*profile.Point }

func (c *collected) Append(line any) error {
	if p, ok := line.(*profile.Point); ok && p.T == "point" && p.OK() {
		c.points = append(c.points, p)
	}
	return nil
}

// choice is what a way to choose points gets out of a table.
type choice struct {
	train   []Point
	seconds float64 // of replayed measuring, all visits
}

// calibrated lets the tool choose n points of a table, replayed from a recording.
func calibrated(t testing.TB, r recorded, path string, n int, chooser profile.Chooser) choice {
	b, err := replay.Open([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	past, _ := profile.NewPast()
	var c collected
	start := b.Clock().Now()
	cfg := profile.Config{Tool: "test", Budget: time.Hour, Seed: 1, Points: n, Chooser: chooser, PointTimeout: time.Hour, Wall: time.Now}
	if err := profile.Calibrate(t.Context(), b, cfg, past, &c, func(profile.Progress) {}); err != nil {
		t.Fatalf("%s: %v", r.name, err)
	}
	byKey := map[string]Point{}
	for _, p := range r.points {
		byKey[profile.NewSpot("", p.Shape).Key("")] = p
	}
	out := choice{seconds: b.Clock().Now().Sub(start).Seconds()}
	for _, p := range c.points {
		out.train = append(out.train, byKey[profile.NewSpot("", p.Shape).Key("")])
	}
	return out
}

// drawn takes n points of a table at random; they cost what they would have
// through the same backend, 2 visits of 8 calls.
func drawn(r recorded, n int, seed uint64) choice {
	var out choice
	for _, i := range rand.New(rand.NewPCG(seed, 0)).Perm(len(r.points))[:n] {
		p := r.points[i]
		out.train = append(out.train, p)
		out.seconds += 2 * (replay.Overhead.Seconds() + 8*max(p.Seconds, 0.0003))
	}
	return out
}

// lenders are the laws of the reference profiles of all other GPU models than a
// table's own: what fit borrows from by itself.
func lenders(t testing.TB, r recorded) []Donor {
	files, err := filepath.Glob(filepath.Join("..", "results", "profiles", "*.profile.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no reference profiles: %v", err)
	}
	var others []*costmodel.Profile
	for _, f := range files {
		p := &costmodel.Profile{}
		if err := doc.Load(f, p); err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(p.Devices, func(d op.DeviceType) bool { return costmodel.ModelOf(d.Name) == r.device.Name }) {
			others = append(others, p)
		}
	}
	if len(others) != len(files)-1 {
		t.Fatalf("%d of %d reference profiles are of other GPUs than %s", len(others), len(files), r.device.Name)
	}
	return Donors(others...)
}

// judge fits a law to what was chosen and scores it on all other rows.
func (c choice) judge(t testing.TB, r recorded, donors []Donor) score {
	d := &Data{Devices: []op.DeviceType{r.device}, Groups: []op.GroupType{r.group}}
	s := Stratum{On: r.on(), Op: c.train[0].Shape.Kind(), Variant: c.train[0].Shape.Variant()}
	fitted := &task{Stratum: s, points: c.train}
	if estimate(d, []*task{fitted}, donors); fitted.err != nil {
		t.Fatalf("%s: %v", r.name, fitted.err)
	}
	chosen := map[string]bool{}
	for _, p := range c.train {
		chosen[p.Key] = true
	}
	var rest []Point
	for _, p := range r.points {
		if !chosen[p.Key] {
			rest = append(rest, p)
		}
	}
	return scoreOf(func(s op.Shape) float64 { return float64(fitted.law.Seconds(s)) }, rest)
}

// chosenBy collects the scores of one way to choose, table by table.
type chosenBy struct {
	scores  []score
	seconds []float64
}

func (c *chosenBy) add(t testing.TB, r recorded, x choice, donors []Donor) {
	c.scores = append(c.scores, x.judge(t, r, donors))
	c.seconds = append(c.seconds, x.seconds)
}

func (c *chosenBy) String() string {
	s := medianScore(c.scores)
	return fmt.Sprintf("%3d tables: MAPE %.2f median %.2f P95 %.1f %%, %.1f s", len(c.scores), s.mape, s.median, s.p95, stats.Median(c.seconds))
}

// typical is the geometric mean of the tables' MAPE.
func (c *chosenBy) typical() float64 {
	sum := 0.0
	for _, s := range c.scores {
		sum += math.Log(s.mape) / float64(len(c.scores))
	}
	return math.Exp(sum)
}

// study compares the ways to choose n points of every table; lent is adaptive
// with what other GPUs lend. The points that are spread out without a law are shown
// beside the others in full studies only.
func study(t testing.TB, all []recorded, n int, seeds uint64, full bool) (adaptive, lent, spread, random chosenBy) {
	for _, r := range all {
		path := r.write(t)
		a := calibrated(t, r, path, n, Adaptive{})
		adaptive.add(t, r, a, nil)
		lent.add(t, r, a, lenders(t, r))
		if full {
			spread.add(t, r, calibrated(t, r, path, n, nil), nil)
		}
		for seed := range seeds {
			random.add(t, r, drawn(r, n, seed), nil)
		}
		last := func(c chosenBy) (s score) {
			if len(c.scores) > 0 {
				s = c.scores[len(c.scores)-1]
			}
			return s
		}
		t.Logf("%3d points of %-85s adaptive %4.1f %4.1f %5.1f  lent %4.1f %4.1f %5.1f  spread %4.1f %4.1f %5.1f  random %4.1f %4.1f %5.1f", n, r.name,
			last(adaptive).mape, last(adaptive).median, last(adaptive).p95, last(lent).mape, last(lent).median, last(lent).p95, last(spread).mape, last(spread).median, last(spread).p95,
			last(random).mape, last(random).median, last(random).p95)
	}
	return adaptive, lent, spread, random
}

// held are the tables of a pattern with rows enough to judge n chosen ones.
func held(t testing.TB, pattern string, n, every int) []recorded {
	var all []recorded
	for i, r := range tables(t, pattern) {
		if i%every == 0 && len(r.points) >= 3*n {
			all = append(all, r)
		}
	}
	return all
}

// A few points that the tool chose itself are worth more than as many taken at
// random. EVENKEEL_STUDY=1 runs all tables with all numbers of points, which
// takes a quarter of an hour.
func TestChosenPointsBeatRandomOnes(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	t.Parallel()
	full := os.Getenv("EVENKEEL_STUDY") != ""
	every, sizes, seeds := 5, []int{60}, uint64(2)
	if full {
		every, sizes, seeds = 1, []int{20, 40, 60, 100}, 5
	}
	for _, c := range []struct {
		name, pattern string
		sizes         []int
		better        float64 // adaptive MAPE over random's, at most
	}{
		{"causal attention", "aiconfigurator/*/context_attention*.csv", sizes, 1},
	} {
		for _, n := range c.sizes {
			adaptive, lent, spread, random := study(t, held(t, c.pattern, n, every), n, seeds, full)
			t.Logf("%s, %d points\nadaptive %s\nwith donors %s\nrandom   %s", c.name, n, &adaptive, &lent, &random)
			if full {
				t.Logf("spread   %s", &spread)
			}
			// The geometric mean: a few tables have no median to speak of.
			if got, want := adaptive.typical(), random.typical(); got > c.better*want {
				t.Errorf("%s from %d points: MAPE %.2f %% chosen, %.2f %% random", c.name, n, got, want)
			}
			if got, want := lent.typical(), adaptive.typical(); got > 1.02*want {
				t.Errorf("%s from %d points: MAPE %.2f %% with donors, %.2f %% without", c.name, n, got, want)
			}
		}
	}
}

// The chooser is a pure function, stays within the time, and takes no shape twice.
func TestAdaptiveKeepsToItsRound(t *testing.T) {
	var pool []op.Shape
	for m := 64; m <= 65536; m *= 2 {
		for n := 256; n <= 8192; n *= 2 {
			pool = append(pool, op.GEMM{Pass: op.Forward, M: units.Tokens(m), N: n, K: 1024, DType: op.BF16})
		}
	}
	call := func(s op.Shape) units.Seconds { return units.Seconds(5e-6 + float64(s.Work().FLOPs)/1e14) }
	r := profile.Round{
		Device: op.DeviceType{Name: "x", Parallel: 100}, Pool: pool, Call: call, Want: 16, Left: 1,
		Cost: func(s op.Shape, t units.Seconds) units.Seconds { return 0.02 + 10*t },
	}
	for range 3 {
		first, again := Adaptive{}.Next(r), Adaptive{}.Next(r)
		if fmt.Sprint(first) != fmt.Sprint(again) || len(first) == 0 || len(first) > r.Want {
			t.Fatalf("%d of %d: %v, then %v", len(first), r.Want, first, again)
		}
		spent, taken := units.Seconds(0), map[int]bool{}
		for _, k := range first {
			if taken[k] {
				t.Errorf("%v takes %d twice", first, k)
			}
			taken[k] = true
			spent += r.Cost(r.Pool[k], call(r.Pool[k]))
			r.Done = append(r.Done, profile.Timed{Shape: r.Pool[k], Seconds: call(r.Pool[k])})
		}
		if float64(spent) > 1.2*float64(r.Left) { // later rounds go by a law fitted to few points
			t.Errorf("%v of %v spent", spent, r.Left)
		}
		var rest []op.Shape
		for k, s := range r.Pool {
			if !taken[k] {
				rest = append(rest, s)
			}
		}
		r.Pool, r.Want = rest, 6
	}
	longest := units.Seconds(0)
	for _, m := range r.Done {
		longest = max(longest, m.Seconds)
	}
	if want := call(pool[len(pool)-1]); longest != want {
		t.Errorf("the longest chosen call takes %v, the longest of all %v", longest, want)
	}
	if got := (Adaptive{}).Next(profile.Round{Pool: pool, Call: call, Cost: r.Cost, Want: 5}); len(got) != 0 {
		t.Errorf("no time, and %d were chosen", len(got))
	}
}
