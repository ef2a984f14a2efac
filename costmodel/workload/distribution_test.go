package workload

import (
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

func parsed(t testing.TB, spec string) Distribution {
	t.Helper()
	d, err := ParseDistribution(spec)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func hash(lengths []units.Tokens) string {
	var words []string
	for _, l := range lengths {
		words = append(words, fmt.Sprint(int64(l)))
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(words, ","))))
}

// The lengths are floor(exp(default_rng(7).normal(log(1000), 1.7, 204800))) + 1
// of NumPy 1.24.2.
func TestLognormalIsThatOfNumPy(t *testing.T) {
	got := parsed(t, "lognormal:median=1000,sd=1.7,seed=7").Lengths(204_800)
	if first := fmt.Sprintf("%d", got[:6]); first != "[1003 1662 628 221 462 186]" {
		t.Errorf("begins %s", first)
	}
	if h := hash(got); h != "3e42f0351585ee5e862aa13c8253dc7c583132ebc623f3fba578f3374b228981" {
		t.Errorf("got %s", h)
	}
}

// The published hashes of the first batches of the stand-in, 512 sequences each,
// and how many of its 204,800 draws are dropped.
func TestStandInIsThePublishedOne(t *testing.T) {
	lengths := parsed(t, "flexsp-standin").Lengths(204_800 - 44)
	for i, want := range []string{"585b36ee019afe08", "5bbd366e2ba9ae78", "058bddba8ac7d965"} {
		batch, err := Batch(lengths, 512, i)
		if err != nil {
			t.Fatal(err)
		}
		if got := hash(batch)[:16]; got != want {
			t.Errorf("batch %d: %s, want %s", i, got, want)
		}
	}
	raw := parsed(t, "lognormal:median=1000,sd=1.7,seed=7").Lengths(204_800)
	shaped := Shape{Limit: 383_872, Multiple: 128}.Apply(raw)
	if shaped.Dropped != 44 || !slices.Equal(shaped.Lengths, lengths) || len(shaped.Kept) != len(lengths) {
		t.Errorf("dropped %d, %d left of which %d are placed", shaped.Dropped, len(shaped.Lengths), len(shaped.Kept))
	}
}

// What is known of the Wikipedia file: mean 1,013.6, and the share of tokens by
// band, %; the drawn lengths keep to them within the spread inside the bins.
func TestWikipediaHasItsShares(t *testing.T) {
	const n = 1_000_000
	var total float64
	bands := make([]float64, 9)
	for _, l := range wikipedia().Draw(n, 0) {
		total += float64(l)
		bands[max(0, min(8, int(math.Ceil(math.Log2(float64(l)/1024)))))] += float64(l)
	}
	if mean := total / n; math.Abs(mean/1013.6-1) > 0.03 {
		t.Errorf("mean %v, want 1013.6", mean)
	}
	for i, want := range []float64{24.9, 15.4, 16.7, 15.5, 12.3, 7.6, 4.5, 2.0, 1.1} {
		if got := 100 * bands[i] / total; math.Abs(got-want) > 1.5 {
			t.Errorf("band %d: %.1f %% of the tokens, want %.1f", i, got, want)
		}
	}
	for _, l := range parsed(t, "flexsp-wikipedia:context=192k").Lengths(2000) {
		if l%128 != 0 || l > 192*1024-128 {
			t.Fatalf("%d", l)
		}
	}
}

func TestBursts(t *testing.T) {
	lengths := parsed(t, "burst").Lengths(64 * 1000)
	bursts := 0
	places := map[int]bool{}
	for i := range 1000 {
		batch, err := Batch(lengths, 64, i)
		if err != nil {
			t.Fatal(err)
		}
		long := slices.Index(batch, 131_072)
		if long < 0 {
			continue
		}
		bursts++
		places[long] = true
		for k, l := range batch {
			// Fillers aim at 4096 and scatter by a tenth, cut off above.
			if k != long && (l < 3686 || l > 4096) {
				t.Fatalf("a filler of %d", l)
			}
		}
	}
	if bursts < 420 || bursts > 580 || len(places) < 60 { // 500 expected, standard deviation 16
		t.Errorf("%d bursts of 1000, at %d places", bursts, len(places))
	}
	for _, l := range parsed(t, "burst:128,seed=3").Lengths(12800) {
		if l != 131_072 && (l < 512 || l > 4096) {
			t.Errorf("%d", l)
		}
	}
}

func TestDistributionsAreStable(t *testing.T) {
	for _, spec := range []string{"lognormal:mean=4000,sd=1", "uniform:512,4096", "burst", "flexsp-standin", "flexsp-wikipedia"} {
		d := parsed(t, spec)
		long := d.Lengths(300)
		if len(long) != 300 || !slices.Equal(long[:100], d.Lengths(100)) {
			t.Errorf("%s: 300 lengths do not begin with the 100", spec)
		}
		again := parsed(t, d.String())
		if again.String() != d.String() || !slices.Equal(again.Lengths(300), long) {
			t.Errorf("%s: %s gives others", spec, d)
		}
	}
	if got := parsed(t, "uniform:512,4k,seed=2").String(); got != "uniform:lo=512,hi=4096,seed=2" {
		t.Error(got)
	}
}

func TestMeanOfLognormal(t *testing.T) {
	total := 0.0
	for _, l := range parsed(t, "lognormal:mean=4000,sd=0.5").Lengths(100_000) {
		total += float64(l)
	}
	// The +1 less the mean fraction cut off adds half a token; 5 standard errors.
	if mean := total / 100_000; math.Abs(mean-4000.5) > 5*4000*0.533/math.Sqrt(100_000) {
		t.Errorf("mean %v", mean)
	}
}

func TestBadSpecificationsAreNamed(t *testing.T) {
	for spec, want := range map[string]string{
		"lognormale:sd=1":             `"lognormale": no such distribution (did you mean "lognormal"?); there are lognormal, uniform, burst, flexsp-standin, flexsp-wikipedia`,
		"lognormal":                   "lognormal: sd: missing; the parameters are median, mean, sd, seed",
		"lognormal:sd=1":              "lognormal: give either median or mean, of the lengths in tokens",
		"lognormal:mean=1,mean=2":     "lognormal: mean: given twice",
		"uniform:5":                   "uniform: hi: missing; the parameters are lo, hi, seed",
		"uniform:5,4":                 "uniform: lo=5 is above hi=4",
		"uniform:0,4":                 "uniform: lo: 0: want 1 to 2147483648",
		"uniform:1.5,4":               "uniform: lo: 1.5: want a whole number",
		"uniform:NaN,4":               `uniform: lo: "NaN" is no number`,
		"uniform:1,4,5,6":             `uniform: "6": there are only 3 parameters: lo, hi, seed`,
		"burst:tokens=600000":         "burst: tokens=600000: one sequence is longer than the micro-batch, total=524288",
		"burst:bb=3":                  `burst: "bb": no such parameter (did you mean "b"?); there are b, tokens, seed, p, total`,
		"flexsp-standin:context=100":  "flexsp-standin: context=100: want at least 1152, when lengths are padded to multiples of 128, twice the GPUs",
		"lognormal:median=1,sd=9":     "lognormal: sd: 9: want 0 to 8",
		"lognormal:median=1,sd=+Inf":  "lognormal: sd: +Inf: want 0 to 8",
		"lognormal:median=1,sd=":      `lognormal: sd: "" is no number`,
		"lognormal:median=1,sd=1,x=1": `lognormal: "x": no such parameter; there are median, mean, sd, seed`,
	} {
		if _, err := ParseDistribution(spec); err == nil || err.Error() != want {
			t.Errorf("%s:\n got %v\nwant %s", spec, err, want)
		}
	}
}

func FuzzParseDistribution(f *testing.F) {
	for _, s := range []string{"burst", "uniform:1,2", "lognormal:median=1k,sd=1,seed=9", "flexsp-standin:context=64k", "flexsp-wikipedia:1152", "x:y=z,,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		d, err := ParseDistribution(spec)
		if err != nil {
			return
		}
		for _, l := range d.Lengths(3) {
			if l < 1 || l > MaxLength {
				t.Fatalf("%s: length %d", d, l)
			}
		}
	})
}
