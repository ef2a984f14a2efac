package fit

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// studied is a device's causal attention and products.
func studied(attention, gemm int) *Data {
	dev := coreDevice()
	d := NewData()
	d.Devices = []op.DeviceType{dev}
	d.Points = append(inventedAttention(dev, attention, 1), inventedGEMM(dev, gemm, 1)...)
	return d
}

func TestSplitsHoldOutWhatTheySay(t *testing.T) {
	d := studied(400, 400)
	dev := d.Devices[0]
	for i, p := range inventedAttention(dev, 60, 9) {
		a := p.Shape.(op.AttnFwd)
		s := attentionShape(int(a.QLen), a.Blocks(), 24, 8)
		if i < 30 {
			d.Points = append(d.Points, pointOf(dev, s, waves(dev, s.Attention)))
		}
	}
	first := func(p Point) float64 { return p.Shape.(op.Located).Coords()[0] }
	for _, s := range d.Strata() {
		most := 0.0
		for _, p := range s.Points {
			most = max(most, first(p))
		}
		for _, split := range Splits() {
			if split.ranks {
				continue // asks nothing of devices
			}
			train, test := s.divide(split)
			if len(train)+len(test) != len(s.Points) {
				t.Errorf("%s: %d and %d of %d points", split.Name, len(train), len(test), len(s.Points))
			}
			for _, p := range test {
				h := costmodel.AxisOf("q_heads", p.Shape)
				switch {
				case split.Name == "heads" && (s.Op != op.KindAttnFwd || math.Log2(h) == math.Floor(math.Log2(h))),
					split.Name == "longer" && first(p) <= most/4:
					t.Errorf("%s holds %+v out", split.Name, p.Shape)
				}
			}
			if share := float64(len(test)) / float64(len(s.Points)); split.Name == "interp" && (share < 0.17 || share > 0.33) {
				t.Errorf("interp holds %.2f of %s out", share, s)
			}
			if split.Name == "heads" && s.Op == op.KindAttnFwd && len(test) == 0 {
				t.Error("no head count is held out")
			}
		}
	}
}

// The same points are held out in whatever order they come, and none is lost.
func TestInterpDoesNotDependOnTheOrder(t *testing.T) {
	d := studied(0, 200)
	keys := func() []string {
		var all []string
		_, test := d.Strata()[0].divide(Splits()[0])
		for _, p := range test {
			all = append(all, p.Key)
		}
		slices.Sort(all)
		return all
	}
	once := keys()
	slices.Reverse(d.Points)
	if again := keys(); !slices.Equal(once, again) {
		t.Error("the points held out depend on the order")
	}
}

func TestSplitsAreFoundByTheirNames(t *testing.T) {
	if got, err := SplitsNamed("longer,interp"); err != nil || len(got) != 2 || got[0].Name != "longer" || got[1].Name != "interp" {
		t.Errorf("%+v, %v", got, err)
	}
	for _, names := range []string{"wider", "", "interp,", "interp, heads"} {
		if _, err := SplitsNamed(names); err == nil || !strings.Contains(err.Error(), "there are interp, heads, longer, ranks") {
			t.Errorf("%q: %v", names, err)
		}
	}
}

// A study tells how far each form is off on points that were kept from it: ours
// first, its core next, then simpler ones; what a split asks nothing of is left
// out.
func TestStudyJudgesEveryForm(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	d := studied(300, 300)
	calls, total := 0, 0
	rows, err := Study(d, Splits()[:3], func(done, all int) {
		if calls++; done != calls {
			t.Errorf("%d of %d at call %d", done, all, calls)
		}
		total = all
	})
	if err != nil {
		t.Fatal(err)
	}
	laws := 0
	for _, r := range rows {
		if r.Ours {
			laws++
		}
	}
	if calls != laws || total != laws || laws <= 3 {
		t.Errorf("%d calls, the last of %d, for %d laws of 3 splits", calls, total, laws)
	}
	forms := map[string][]string{}
	for i, r := range rows {
		at := r.Split + " " + string(r.Op)
		forms[at] = append(forms[at], r.Form)
		if !(r.MAPE > 0 && r.Median > 0 && r.Median <= r.P95) || r.Fitted < 10 || r.Held < 10 {
			t.Errorf("%+v", r)
		}
		if first := i == 0 || rows[i-1].Split != r.Split || rows[i-1].Op != r.Op; first != r.Ours || (r.Coverage > 0) != r.Ours {
			t.Errorf("row %d, %s: ours %v, coverage %v", i, r.Form, r.Ours, r.Coverage)
		}
	}
	for _, k := range []op.Kind{op.KindAttnFwd, op.KindGEMM} {
		if len(forms["heads "+string(k)]) > 0 {
			t.Errorf("there are odd head counts of %s", k)
		}
		for _, split := range []string{"interp", "longer"} {
			got := forms[split+" "+string(k)]
			for _, want := range []string{"tiles", "a + b FLOPs", "roofline", "log-log table"} {
				if !slices.Contains(got, want) {
					t.Errorf("%s of %s: %q is missing in %q", split, k, want, got)
				}
			}
		}
	}
}

// The figures are those of the definition.
func TestStudyRowsAddUp(t *testing.T) {
	var test []Point
	for i := range 21 {
		test = append(test, Point{Shape: op.AdamW{Params: int64(100 * (i + 1))}, Seconds: 1})
	}
	// The k-th point is off by k %, alternately up and down.
	var r StudyRow
	r.judge(test, func(s op.Shape) float64 {
		k := float64(s.(op.AdamW).Params)/100 - 1
		return 1 + 0.01*k*math.Pow(-1, k)
	})
	for name, d := range map[string]float64{"MAPE": r.MAPE - 0.10, "median": r.Median - 0.10, "95th": r.P95 - 0.19} {
		if math.Abs(d) > 1e-12 {
			t.Errorf("%s is off by %v: %+v", name, d, r)
		}
	}
}

func TestStudyNeedsPoints(t *testing.T) {
	if _, err := Study(studied(10, 12), Splits()[:1], nil); err == nil || !strings.Contains(err.Error(), "import or measure more") {
		t.Errorf("%v", err)
	}
	if _, err := Study(NewData(), Splits(), nil); err == nil {
		t.Error("studies nothing")
	}
}

// The simpler forms are what their names say, on points that obey them.
func TestSimplerForms(t *testing.T) {
	dev := coreDevice()
	var points []Point
	for _, m := range []int{16, 64, 256, 1024, 4096, 16384} {
		for _, n := range []int{256, 1024, 4096} {
			g := op.GEMM{Pass: op.Forward, M: units.Tokens(m), N: n, K: 2048, DType: op.BF16}
			w := g.Work()
			points = append(points, pointOf(dev, g, 1e-6+max(float64(w.FLOPs)/(0.5*dev.Sheet.BF16PerS), float64(w.Bytes())/(0.8*dev.Sheet.MemoryPerS))))
		}
	}
	for name, most := range map[string]float64{"roofline": 12, "log-log table": 1} {
		all := simpler(dev, op.KindGEMM)
		i := slices.IndexFunc(all, func(s simple) bool { return s.name == name })
		predict, err := all[i].fit(points)
		if err != nil {
			t.Fatal(err)
		}
		if s := scoreOf(predict, points); s.mape > most {
			t.Errorf("%s is off by %.2f %% on its own points", name, s.mape)
		}
	}
	// Twice the work beyond the table takes twice the time.
	predict, err := interpolated(points[len(points)-1:])
	if err != nil {
		t.Fatal(err)
	}
	g := points[len(points)-1].Shape.(op.GEMM)
	at := predict(g)
	g.M *= 2
	if twice := predict(g); math.Abs(twice/at-2) > 1e-9 {
		t.Errorf("%v, then %v", at, twice)
	}
	dev.Sheet.MemoryPerS = 0
	if slices.ContainsFunc(simpler(dev, op.KindGEMM), func(s simple) bool { return s.name == "roofline" }) {
		t.Error("a roofline without a bandwidth")
	}
	for _, f := range []simple{roofline(coreDevice()), {"table", interpolated}} {
		if _, err := f.fit(nil); err == nil {
			t.Errorf("%s of no points", f.name)
		}
	}
}
