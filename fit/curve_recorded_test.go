package fit

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
)

// libraries groups the tables of collectives that are fitted together: one
// library on one device.
func libraries(t testing.TB, patterns ...string) [][]recorded {
	var all [][]recorded
	at := map[string]int{}
	for _, pattern := range patterns {
		for _, r := range tables(t, pattern) {
			library, _, _ := strings.Cut(r.name, " ")
			i, ok := at[library]
			if !ok {
				i = len(all)
				at[library] = i
				all = append(all, nil)
			}
			all[i] = append(all[i], r)
		}
	}
	return all
}

func fabricOfTable(r recorded) func(float64) fabric {
	return func(best float64) fabric { return fabricOf(r.group, r.device.Sheet, best) }
}

// position holds every fourth size of a collective and group out in all
// libraries, variants and devices alike, so that no near-repeat tells it.
func position([]Point) func(Point) bool {
	return func(p Point) bool {
		g := p.Shape.(op.Grouped)
		h := fnv.New32a()
		fmt.Fprintf(h, "%s %d %d", p.Shape.Kind(), g.Ranks(), int(p.Shape.(op.Located).Coords()[0]))
		x := h.Sum32()
		return (x^x>>15)*2654435761>>16%4 == 0
	}
}

// octave holds every second octave out.
func octave([]Point) func(Point) bool {
	return func(p Point) bool { return int(math.Round(math.Log2(p.Shape.(op.Located).Coords()[0])))%2 == 1 }
}

// classes of tables that are reported together.
func classOf(r recorded) string {
	custom := strings.Contains(r.name, "-graph") || strings.Contains(r.name, "-eager")
	switch {
	case custom && r.group.Link == "nvlink":
		return "custom nvlink"
	case custom:
		return "custom pcie"
	case r.group.Link == "nvlink":
		return "nvlink"
	}
	return r.device.Name
}

// trial fits the libraries without what is held out.
func trial(t testing.TB, all [][]recorded, by func([]Point) func(Point) bool, report func(r recorded, train, test []Point, l curveLaw)) {
	for _, lib := range all {
		var laws, tests [][]Point
		var of []recorded
		for _, r := range lib {
			train, test := divide(r.points, by)
			if len(train) >= 2 && len(test) > 0 {
				laws, tests, of = append(laws, train), append(tests, test), append(of, r)
			}
		}
		if len(laws) == 0 {
			continue
		}
		fitted, _, err := curveLaws(fabricOfTable(of[0]), laws)
		if err != nil {
			t.Fatalf("%s: %v", of[0].name, err)
		}
		for i, l := range fitted {
			report(of[i], laws[i], tests[i], l)
		}
	}
}

// timeOf predicts shapes by a curve.
func timeOf(c *costmodel.Curve) func(op.Shape) float64 {
	return func(s op.Shape) float64 { return float64(c.Seconds(op.Volume(s))) }
}

// insideCurve says whether a curve's interval holds a point.
func insideCurve(c *costmodel.Curve, p Point) bool {
	x := op.Volume(p.Shape)
	half, _ := c.HalfWidth(x)
	return math.Abs(math.Log(p.Seconds/float64(c.Seconds(x)))) <= half
}

// What the curves reach on sizes that were held out: MAPE, median and P95 in
// percent, the medians over tables. The limits of the NVLink tables leave a
// tenth of room above what was reached; the aim was 5 / 2.5 / 17 between sizes
// and 10 / 5 / 25 beyond them.
func TestCollectivesOnHeldOutSizes(t *testing.T) {
	if testing.Short() {
		t.Skip("fits every table of the recordings several times")
	}
	all := libraries(t, "aiconfigurator/*/nccl.csv", "aiconfigurator/*/oneccl.csv", "aiconfigurator/*/custom_allreduce.csv")
	for _, c := range []struct {
		name  string
		by    func([]Point) func(Point) bool
		limit score
	}{
		{"quarter", quarter, score{mape: 2.5, median: 2, p95: 4.5}},
		{"position", position, score{mape: 4.5, median: 3, p95: 9}},
		{"octave", octave, score{mape: 4.4, median: 2.7, p95: 11}},
		{"bigger", bigger, score{mape: 5.5, median: 5, p95: 8}},
	} {
		t.Run(c.name, func(t *testing.T) {
			byClass := map[string][]score{}
			var strata insideCounts
			trial(t, all, c.by, func(r recorded, train, test []Point, l curveLaw) {
				curve := l.curve
				class := classOf(r)
				got := scoreOf(timeOf(curve), test)
				byClass[class] = append(byClass[class], got)
				if class == "nvlink" {
					byClass["nvlink "+r.device.Name] = append(byClass["nvlink "+r.device.Name], got)
					for name, fit := range map[string]func([]Point) (func(op.Shape) float64, error){"alpha_beta": fitted(curveForms()[0]).fit, "log-log table": sizeTable} {
						if predict, err := fit(train); err == nil {
							byClass["nvlink by "+name] = append(byClass["nvlink by "+name], scoreOf(predict, test))
						}
					}
				}
				for _, p := range test {
					strata.add(fmt.Sprintf("%s %s %s %s", class, r.device.Name, p.Shape.Kind(), band(p)), insideCurve(curve, p))
				}
			})
			for _, name := range sortedKeys(byClass) {
				s := medianScore(byClass[name])
				t.Logf("%-26s %3d tables, %4d points: %4.1f / %4.1f / %4.1f %%", name, len(byClass[name]), s.n, s.mape, s.median, s.p95)
			}
			if got := medianScore(byClass["nvlink"]); got.mape > c.limit.mape || got.median > c.limit.median || got.p95 > c.limit.p95 {
				t.Errorf("nvlink: %.1f / %.1f / %.1f %%, want at most %.1f / %.1f / %.1f", got.mape, got.median, got.p95, c.limit.mape, c.limit.median, c.limit.p95)
			}
			strata.judge(t)
		})
	}
}

// The laws that are kept, straight lines among them, hold for messages up to eight times as
// large as the fitted ones, library by library and not in the median only. Where a line was
// kept that was as good on the smaller messages, these were off by 27, 13 and 15 % on average;
// by their families they are by 8.
func TestLawsOfLargerMessages(t *testing.T) {
	sequential(t)
	off, points := map[string]float64{}, map[string]float64{}
	trial(t, libraries(t, "aiconfigurator/h100_sxm/nccl.csv"), bigger, func(r recorded, train, test []Point, l curveLaw) {
		if len(train) < fewestToFit {
			return
		}
		law := fitCurve(t, train)
		l.prefer(&law, train)
		library, _, _ := strings.Cut(r.name, " ")
		for _, p := range test {
			off[library] += math.Abs(float64(law.Seconds(p.Shape))/p.Seconds - 1)
			points[library]++
		}
	})
	for _, library := range sortedKeys(off) {
		mean := off[library] / points[library]
		t.Logf("%s: %.0f points, off by %.1f %% on average", library, points[library], 100*mean)
		if mean > 0.1 {
			t.Errorf("%s: off by %.1f %% on average", library, 100*mean)
		}
	}
}

// insideCounts counts how many points lie in their 90 % intervals, by stratum.
type insideCounts struct{ in, of map[string]int }

func (c *insideCounts) add(stratum string, inside bool) {
	if c.of == nil {
		c.in, c.of = map[string]int{}, map[string]int{}
	}
	c.of[stratum]++
	if inside {
		c.in[stratum]++
	}
}

// judge wants nine tenths of all points inside, give or take what the few sizes
// that a hold-out leaves make uncertain: a size that one library missed, its
// other versions and types missed too. Strata of fewer than 50 points say
// nothing.
func (c *insideCounts) judge(t *testing.T) {
	in, of := 0, 0
	for _, name := range sortedKeys(c.of) {
		in, of = in+c.in[name], of+c.of[name]
		if share := float64(c.in[name]) / float64(c.of[name]); c.of[name] >= 50 {
			t.Logf("  %-50s %3d of %3d inside (%.0f %%)", name, c.in[name], c.of[name], 100*share)
			if share < 0.75 {
				t.Errorf("%s: only %.0f %% inside", name, 100*share)
			}
		}
	}
	share := float64(in) / float64(of)
	t.Logf("90 %% intervals held %.1f %% of %d points", 100*share, of)
	if share < 0.85 || share > 0.97 {
		t.Errorf("90 %% intervals held %.1f %% of the points", 100*share)
	}
}

// band names the size band of a message.
func band(p Point) string {
	switch b := p.Shape.(op.Located).Coords()[0]; {
	case b < 32<<10:
		return "below 32 KiB"
	case b < 4<<20:
		return "below 4 MiB"
	}
	return "from 4 MiB"
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Of messages smaller than all that were fitted the interval holds most, whether those were
// large or a few thousand bytes, and the time is not that of the smallest fitted one.
func TestCollectivesBelowTheSmallestMessage(t *testing.T) {
	if testing.Short() {
		t.Skip("fits every table of the recordings several times")
	}
	all := libraries(t, "aiconfigurator/*/nccl.csv", "aiconfigurator/*/oneccl.csv")
	for _, least := range []float64{12, 14, 16, 18} {
		inside, of := 0., 0.
		var off []float64
		trial(t, all, func([]Point) func(Point) bool {
			return func(p Point) bool { return float64(op.Volume(p.Shape)) < math.Exp2(least) }
		}, func(_ recorded, _, test []Point, l curveLaw) {
			for _, p := range test {
				off = append(off, math.Log(p.Seconds/float64(l.curve.Seconds(op.Volume(p.Shape)))))
				if of++; insideCurve(l.curve, p) {
					inside++
				}
			}
		})
		t.Logf("fitted from 2^%v bytes on: of %v smaller messages %.2f inside, %+.3f off in the median", least, of, inside/of, stats.Median(off))
		if in := inside / of; in < 0.85 || in > 0.985 || math.Abs(stats.Median(off)) > 0.06 {
			t.Errorf("fitted from 2^%v bytes on: of %v smaller messages %.2f inside, %+.3f off in the median", least, of, in, stats.Median(off))
		}
	}
}
