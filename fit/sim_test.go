package fit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/sim"
)

// journal is a recording in memory.
type journal struct{ bytes.Buffer }

func (j *journal) Append(line any) error {
	data, err := json.Marshal(line)
	j.Write(append(data, '\n'))
	return err
}

// recorded calibrates a simulated cluster, all ops or only some, and returns its
// truth and recording.
func recorded(t testing.TB, spec string, budget time.Duration, only ...op.Kind) (sim.Config, []byte) {
	t.Helper()
	c, err := sim.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	var j journal
	past, _ := profile.NewPast()
	cfg := profile.Config{Tool: "test", Budget: budget, Seed: c.Seed, PointTimeout: time.Minute, Wall: time.Now, Only: only}
	if err := profile.Calibrate(t.Context(), sim.New(c), cfg, past, &j, func(profile.Progress) {}); err != nil {
		t.Fatal(err)
	}
	return c, j.Bytes()
}

func dataOf(t testing.TB, recording []byte) *fit.Data {
	t.Helper()
	d := fit.NewData()
	if err := d.Add("sim.rec.jsonl", bytes.NewReader(recording)); err != nil {
		t.Fatal(err)
	}
	return d
}

func fitted(t testing.TB, d *fit.Data) *costmodel.Profile {
	t.Helper()
	p, err := fit.Fit(d, fit.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// skipShort leaves tests of statistics out under the race detector, which is
// what `make test` runs -short: they have no races and take minutes there.
func skipShort(t *testing.T) {
	if testing.Short() {
		t.Skip("statistics over many seeds")
	}
}

// truthOf lists a law's coefficients beside the truth of the cluster, by name.
func truthOf(c sim.Config, l *costmodel.Law) (names []string, got []costmodel.Coef, truth []float64) {
	add := func(name string, k costmodel.Coef, v float64) {
		names, got, truth = append(names, name), append(got, k), append(truth, v)
	}
	if l.Group != "" {
		if len(l.Curve.Pieces) == 1 {
			add("alpha_s", l.Curve.Pieces[0].Alpha, c.Link.Alpha)
			add("s_per_byte of a link", l.Curve.Pieces[0].Beta, c.Link.Beta)
		}
		return names, got, truth
	}
	i := slices.IndexFunc(c.Devices, func(d sim.Device) bool { return d.Name == l.Device })
	d := c.Devices[i].Truth
	if l.Linear != nil {
		for j, v := range []float64{d.Launch, d.PerFLOP, d.PerRow, d.PerByte, d.PerTail} {
			k := l.Linear.Coefs()[j]
			if k.Hi > 0 { // a feature that the op has
				add(costmodel.LinearNames()[j], k, v)
			}
		}
	}
	return names, got, truth
}

// The 95 % intervals of the coefficients contain the truth, over 20 seeds of a
// cluster with 2 % noise. Every name is pooled over its laws: a single law's
// coefficient has 20 chances, and of 20 true 95 % intervals 18 or fewer cover
// in a quarter of all cases.
func TestIntervalsOfCoefficientsContainTheTruth(t *testing.T) {
	t.Parallel()
	skipShort(t)
	in, of, missed := map[string]int{}, map[string]int{}, 0
	for seed := 1; seed <= 20; seed++ {
		c, recording := recorded(t, fmt.Sprintf("1xbig+1xsmall,noise=0.02,seed=%d", seed), time.Minute)
		p := fitted(t, dataOf(t, recording))
		for i := range p.Laws {
			names, got, truth := truthOf(c, &p.Laws[i])
			if len(names) == 0 {
				missed++ // another form was chosen
			}
			for j, name := range names {
				of[name]++
				if got[j].Lo <= truth[j] && truth[j] <= got[j].Hi {
					in[name]++
				}
			}
		}
	}
	total, all := 0, 0
	for _, name := range slices.Sorted(maps.Keys(of)) {
		total, all = total+in[name], all+of[name]
		t.Logf("%-22s %4d of %4d (%.1f %%)", name, in[name], of[name], 100*float64(in[name])/float64(of[name]))
		if in[name]*10 < of[name]*9 {
			t.Errorf("%s: %d of %d intervals contain the truth", name, in[name], of[name])
		}
	}
	t.Logf("all: %d of %d (%.1f %%); %d laws of another form", total, all, 100*float64(total)/float64(all), missed)
	if len(of) != 7 || missed > all/50 {
		t.Errorf("%d names, %d laws of another form than the truth", len(of), missed)
	}
}

// The 90 % intervals of predictions cover the points that were set aside.
func TestIntervalsOfPredictionsCoverTheHoldOut(t *testing.T) {
	skipShort(t)
	in, of := 0, 0
	for seed := 1; seed <= 5; seed++ {
		_, recording := recorded(t, fmt.Sprintf("1xbig+1xsmall,noise=0.05,seed=%d", seed), time.Minute)
		d := dataOf(t, recording)
		p := fitted(t, d)
		r, err := fit.Check(p, d, d.Held(p.Holdout.Seed, p.Holdout.Share), fit.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		for _, pair := range r.Pairs {
			of++
			if pair.Inside() {
				in++
			}
		}
		if r.Failed(true) {
			t.Errorf("seed %d: a law of the true form is above its limits: %+v", seed, r.Rows)
		}
	}
	if share := float64(in) / float64(of); share < 0.80 || share > 0.97 {
		t.Errorf("%d of %d held-out points (%.1f %%) lie inside their 90 %% interval", in, of, 100*share)
	}
}

func TestSameInputSameBytes(t *testing.T) {
	skipShort(t)
	_, recording := recorded(t, "1xbig+1xsmall", 30*time.Second)
	var first []byte
	for range 2 {
		p := fitted(t, dataOf(t, recording))
		data, err := doc.Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		if first != nil && !bytes.Equal(first, data) {
			t.Error("two fits of one recording differ")
		}
		first = data
	}
}

// What is set aside depends on the seed and the shapes, never on a time.
func TestTheHoldOutDoesNotLookAtTimes(t *testing.T) {
	_, recording := recorded(t, "1xbig", 20*time.Second)
	d := dataOf(t, recording)
	shuffled := dataOf(t, recording)
	r := rand.New(rand.NewPCG(1, 0))
	for i := range shuffled.Points {
		shuffled.Points[i].Seconds *= math.Exp(r.NormFloat64())
	}
	keys := func(points []fit.Point) []string {
		var ks []string
		for _, p := range points {
			ks = append(ks, p.Key)
		}
		return ks
	}
	held := keys(d.Held(1, 0.2))
	if !slices.Equal(held, keys(shuffled.Held(1, 0.2))) {
		t.Error("other times, other hold-out")
	}
	if slices.Equal(held, keys(d.Held(2, 0.2))) {
		t.Error("another seed, the same hold-out")
	}
	if share := float64(len(held)) / float64(len(d.Points)); share < 0.15 || share > 0.3 {
		t.Errorf("%.0f %% are set aside", 100*share)
	}
	// None of them was fitted.
	p := fitted(t, d)
	n := 0
	for _, l := range p.Laws {
		n += l.Fit.Points + l.Fit.Outside
	}
	if n+len(held) != len(d.Points) {
		t.Errorf("%d fitted and %d held of %d points", n, len(held), len(d.Points))
	}
}

// One point in ten is three times too slow, as when somebody else held the
// machine: the laws hardly notice.
func TestOutliersDoNotBendALaw(t *testing.T) {
	skipShort(t)
	c, recording := recorded(t, "1xbig+1xsmall,noise=0.01", 2*time.Minute)
	d := dataOf(t, recording)
	seen := map[string]int{}
	for i := range d.Points {
		x := &d.Points[i]
		stratum := fmt.Sprint(x.On, x.Shape.Kind(), x.Shape.Variant())
		if seen[stratum]++; seen[stratum]%10 == 5 {
			x.Seconds *= 3
		}
	}
	p := fitted(t, d)
	var worst float64
	for _, s := range d.Strata() {
		for i := range p.Laws {
			l := &p.Laws[i]
			if l.On() != s.On || l.Op != s.Op || l.Variant != s.Variant {
				continue
			}
			var errs []float64
			for _, x := range s.Points {
				k := max(0, slices.IndexFunc(c.Devices, func(d sim.Device) bool { return d.Name == l.Device }))
				truth := float64(c.True(c.Devices[k].Truth, x.Shape))
				errs = append(errs, math.Abs(math.Log(float64(l.Seconds(x.Shape))/truth)))
			}
			slices.Sort(errs)
			if errs[len(errs)/2] > 0.04 {
				t.Logf("%s %s: %.3f %s", l.On(), l.Op, errs[len(errs)/2], l.Form())
			}
			worst = max(worst, errs[len(errs)/2])
		}
	}
	if worst > 0.04 {
		t.Errorf("a law's median error against the truth is %.1f %%", 100*worst)
	}
}

func TestDataThatMustNotBePooledIsRefused(t *testing.T) {
	_, recording := recorded(t, "1xbig", 20*time.Second)
	for want, other := range map[string]string{
		"is another device in an earlier recording":                  strings.ReplaceAll(string(recording), `"fingerprint":"sim `, `"fingerprint":"other `),
		"simulated and measured recordings are never taken together": strings.Replace(string(recording), `"simulated":true`, `"simulated":false`, 1),
	} {
		d := dataOf(t, recording)
		if err := d.Add("other.rec.jsonl", strings.NewReader(other)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	d := dataOf(t, recording)
	p := fitted(t, d)
	p.Devices[0].Fingerprint = "another"
	if _, err := fit.Check(p, d, d.Points, fit.DefaultLimits()); err == nil || !strings.Contains(err.Error(), "is another machine or software stack") {
		t.Errorf("got %v", err)
	}
	if _, err := fit.Fit(fit.NewData(), fit.Defaults()); err == nil || !strings.Contains(err.Error(), "no law can be fitted from 0 points: a law needs 6 of one op in one variant on one device or group; measure more: evenkeel calibrate --fresh --budget 10m") {
		t.Errorf("got %v", err)
	}
	if _, err := fit.Fit(d, fit.Options{Share: 1}); err == nil {
		t.Error("a hold-out of everything was accepted")
	}
}

// A wrong device does not hide among good ones, a family with few points gets
// no verdict, and an op without a law is named.
func TestCheckJudgesFamiliesAndTheirParts(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	_, recording := recorded(t, "1xbig+1xsmall", 4*time.Minute)
	d := dataOf(t, recording)
	p := fitted(t, d)
	held := d.Held(p.Holdout.Seed, p.Holdout.Share)
	r, err := fit.Check(p, d, held, fit.DefaultLimits())
	if err != nil || r.Failed(true) {
		t.Fatalf("%v: %+v", err, r)
	}
	for i := range held {
		if held[i].On == "sim_small" && held[i].Shape.Kind() == op.KindGEMM {
			held[i].Seconds *= 1.5
		}
	}
	r, err = fit.Check(p, d, held, fit.DefaultLimits())
	if err != nil || !r.Failed(false) {
		t.Errorf("a device half as fast passed: %v", err)
	}
	for _, row := range r.Rows {
		if bad := row.Family == fit.FamilyGEMM && row.On != "sim_big"; bad != (row.Verdict == fit.Fail) {
			t.Errorf("%s on %s: %s", row.Family, row.On, row.Verdict)
		}
	}
	few, err := fit.Check(p, d, held[:5], fit.DefaultLimits())
	if err != nil || few.Failed(false) || !few.Failed(true) || few.Rows[0].Verdict != fit.Insufficient {
		t.Errorf("%v: %+v", err, few)
	}
	p.Laws = slices.DeleteFunc(p.Laws, func(l costmodel.Law) bool { return l.Op == op.KindNorm })
	r, err = fit.Check(p, d, d.Held(1, 0.2), fit.DefaultLimits())
	if err != nil || len(r.Missing) != 2 || r.Failed(false) || !r.Failed(true) {
		t.Errorf("%v: missing %v", err, r.Missing)
	}
}

// BenchmarkFit10k fits the laws of 10,000 points.
func BenchmarkFit10k(b *testing.B) {
	_, recording := recorded(b, "1xbig+1xsmall", 20*time.Minute)
	d := dataOf(b, recording)
	r := rand.New(rand.NewPCG(1, 0))
	for n := len(d.Points); len(d.Points) < 10_000; {
		p := d.Points[r.IntN(n)]
		p.Key += fmt.Sprint(len(d.Points))
		p.Seconds *= math.Exp(0.02 * r.NormFloat64())
		d.Points = append(d.Points, p)
	}
	for b.Loop() {
		if _, err := fit.Fit(d, fit.Defaults()); err != nil {
			b.Fatal(err)
		}
	}
}
