package costmodel

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// h100Core is a core with the coefficients that a fit gave an H100, rounded.
func h100Core() *GEMMCore {
	return &GEMMCore{
		DType: op.BF16, Parallel: 132, L2: 25e6, PerS: 9.5e14, MemPerS: 2.8e12,
		Launch: 2.6e-6, Step: 8e-8, Load: 1.6e-12, Tile: 2.5e-8, Store: 2.5e-11, Whole: 0.1, Crowd: 4,
		SplitS: 2.9e-6, SplitByte: 1.6e-13, Sharp: 2.5, Cached: 1.1, Copies: 4, Reload: 0.1, Cast: 3e-13,
		Power: 0.2, PowerS: 9e-3, VLaunch: 5.7e-6, VPerS: 2.9e12, Tiles: GEMMTiles(),
	}
}

// randomCore has every coefficient of the H100's times up to e either way.
func randomCore(r *rand.Rand) *GEMMCore {
	c := h100Core()
	for _, f := range c.Coefs() {
		*f.At *= math.Exp(2*r.Float64() - 1)
	}
	c.DType = []op.DType{op.BF16, op.FP8, op.F32}[r.IntN(3)]
	c.Parallel = 1 + r.IntN(200)
	return c
}

// logUniform is a whole number from 1 to most.
func logUniform(r *rand.Rand, most float64) float64 {
	return math.Floor(math.Exp(r.Float64() * math.Log(most+1)))
}

func randomGEMM(r *rand.Rand, d op.DType) op.GEMM {
	pass := []op.Pass{op.Forward, op.DGrad, op.WGrad}[r.IntN(3)]
	return op.GEMM{Pass: pass, M: units.Tokens(logUniform(r, 1<<17)), N: int(logUniform(r, 1<<16)), K: int(logUniform(r, 1<<16)), DType: d}
}

func TestGEMMCoreNeverFallsWithAnyAxis(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		c := randomCore(r)
		for range 100 {
			g := randomGEMM(r, c.DType)
			more := g
			switch by := int(logUniform(r, 4096)); r.IntN(3) {
			case 0:
				more.M += units.Tokens(by)
			case 1:
				more.N += by
			case 2:
				more.K += by
			}
			if a, b := c.Seconds(g), c.Seconds(more); b < a*(1-1e-12) {
				t.Fatalf("%+v takes %v s, %+v only %v s, by %+v", g, a, more, b, c)
			}
		}
	}
}

func TestGEMMCoreKeepsToPhysics(t *testing.T) {
	c := h100Core()
	for _, g := range []op.GEMM{
		{Pass: op.Forward, M: 1, N: 32, K: 32, DType: op.BF16},
		{Pass: op.Forward, M: 8192, N: 8192, K: 8192, DType: op.BF16},
		{Pass: op.WGrad, M: 1 << 20, N: 28672, K: 8192, DType: op.BF16},
		{Pass: op.DGrad, M: 64, N: 28672, K: 8192, DType: op.BF16},
	} {
		w, got := g.Work(), c.Seconds(g)
		if floor := float64(w.FLOPs) / c.PerS; got < floor {
			t.Errorf("%+v: %v s, less than %v s at the peak", g, got, floor)
		}
		if got < c.Launch {
			t.Errorf("%+v: %v s, less than a launch", g, got)
		}
		if most := c.Launch + 3*(float64(w.FLOPs)/c.PerS+float64(w.Bytes())/c.MemPerS) + 20e-6; got > most {
			t.Errorf("%+v: %v s, more than %v s", g, got, most)
		}
	}
}

// TestGEMMCoreSteps pins where the time steps: one row of tiles more costs a
// wave when the last one was full.
func TestGEMMCoreSteps(t *testing.T) {
	c := h100Core()
	c.Whole, c.MemPerS = 1e9, 1e15 // whole waves, and no memory to hide them
	c.Tiles = []GEMMTile{{Rows: 128, Cols: 256, Rate: 1, Crowd: 1}}
	at := func(m units.Tokens) float64 {
		return c.Seconds(op.GEMM{Pass: op.Forward, M: m, N: 256 * 132, K: 8192, DType: op.BF16})
	}
	one, next, two := at(128), at(129), at(256)
	if next < 1.6*one || math.Abs(next/two-1) > 0.02 {
		t.Errorf("128, 129 and 256 rows take %v, %v and %v s: want a step of a wave after 128", one, next, two)
	}
}

func TestGEMMCoreSplitsWhereTilesAreFew(t *testing.T) {
	c := h100Core()
	deep, _ := c.Plan(op.GEMM{Pass: op.WGrad, M: 1 << 18, N: 256, K: 256, DType: op.BF16})
	wide, _ := c.Plan(op.GEMM{Pass: op.Forward, M: 1 << 14, N: 1 << 14, K: 4096, DType: op.BF16})
	if deep.Split < 4 || wide.Split != 1 {
		t.Errorf("splits of %d for 256 x 256 of 262,144 and %d for 16,384 x 16,384: want many and none", deep.Split, wide.Split)
	}
}

// TestGEMMCorePassesShareOneForm: a pass is the product of its own axes.
func TestGEMMCorePassesShareOneForm(t *testing.T) {
	c := h100Core()
	fwd := c.Seconds(op.GEMM{Pass: op.Forward, M: 512, N: 2048, K: 1024, DType: op.BF16})
	dgrad := c.Seconds(op.GEMM{Pass: op.DGrad, M: 512, N: 1024, K: 2048, DType: op.BF16})
	wgrad := c.Seconds(op.GEMM{Pass: op.WGrad, M: 1024, N: 2048, K: 512, DType: op.BF16})
	if fwd != dgrad || fwd != wgrad {
		t.Errorf("the same product takes %v s forward, %v and %v s backward", fwd, dgrad, wgrad)
	}
}

func TestGEMMCorePlanAgreesWithSeconds(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		c := randomCore(r)
		g := randomGEMM(r, c.DType)
		plan, best := c.Plan(g)
		if as := c.SecondsAs(g, plan); math.Abs(as/best-1) > 1e-12 || best != c.Seconds(g) {
			t.Fatalf("%+v by %+v: %v s, planned %v s, predicted %v s", g, plan, as, best, c.Seconds(g))
		}
	}
}

func TestGEMMCoreDocument(t *testing.T) {
	c := h100Core()
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var back GEMMCore
	if err := json.Unmarshal(data, &back, json.RejectUnknownMembers(true)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(*c, back); d != "" {
		t.Error(d)
	}
	for _, f := range c.Coefs() {
		key := f.Name[strings.LastIndexAny(f.Name, ".")+1:]
		if !strings.Contains(string(data), `"`+key+`"`) {
			t.Errorf("%s is no key of the document", f.Name)
		}
	}
}

func TestGEMMCoreValidate(t *testing.T) {
	if err := h100Core().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*GEMMCore){
		"dtype":       func(c *GEMMCore) { c.DType = "int4" },
		"parallel":    func(c *GEMMCore) { c.Parallel = 0 },
		"tiles: none": func(c *GEMMCore) { c.Tiles = nil },
		"tiles: 60000": func(c *GEMMCore) {
			c.Tiles = slices.Repeat(c.Tiles[:1], 60000)
		},
		"tiles[3].rows":  func(c *GEMMCore) { c.Tiles[3].Rows = 0 },
		"tiles[1].rate":  func(c *GEMMCore) { c.Tiles[1].Rate = math.NaN() },
		"flops_per_s":    func(c *GEMMCore) { c.PerS = 0 },
		"launch_s":       func(c *GEMMCore) { c.Launch = -1 },
		"power_s":        func(c *GEMMCore) { c.PowerS = math.Inf(1) },
		"weight_copies:": func(c *GEMMCore) { c.Copies = 0 },
	} {
		c := h100Core()
		spoil(c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s spoilt: %v", want, err)
		}
	}
}

func TestGEMMCoreScaled(t *testing.T) {
	from := op.DeviceType{Parallel: 132, Sheet: op.Sheet{BF16PerS: 1e15, MemoryPerS: 3e12, L2: 50 << 20}}
	to := op.DeviceType{Parallel: 148, Sheet: op.Sheet{BF16PerS: 2e15, MemoryPerS: 6e12, L2: 100 << 20}}
	c := h100Core()
	s := c.Scaled(from, to)
	big := op.GEMM{Pass: op.Forward, M: 1 << 14, N: 1 << 14, K: 1 << 14, DType: op.BF16}
	thin := op.GEMM{Pass: op.Forward, M: 16, N: 1 << 16, K: 1 << 14, DType: op.BF16}
	for _, g := range []op.GEMM{big, thin} {
		if x := c.Seconds(g) / s.Seconds(g); x < 1.8 || x > 2.2 {
			t.Errorf("%+v: %v times faster on a device of twice the rates", g, x)
		}
	}
	if same := c.Scaled(from, from); cmp.Diff(c, same) != "" {
		t.Errorf("scaled to itself: %s", cmp.Diff(c, same))
	}
	if c.Tiles[0].Rate = 7; s.Tiles[0].Rate == 7 {
		t.Error("the scaled core shares its menu with the one it came from")
	}
	unknown := c.Scaled(op.DeviceType{Parallel: 132}, to)
	if unknown.PerS != c.PerS || unknown.MemPerS != c.MemPerS {
		t.Error("coefficients moved without a datasheet to move them by")
	}
}

func TestGEMMCoreDoesNotAllocate(t *testing.T) {
	c, g := h100Core(), op.GEMM{Pass: op.Forward, M: 4096, N: 1024, K: 8192, DType: op.BF16}
	if n := testing.AllocsPerRun(100, func() { c.Seconds(g) }); n != 0 {
		t.Errorf("%v allocations a prediction", n)
	}
}

func BenchmarkGEMMCore(b *testing.B) {
	c := h100Core()
	for name, g := range map[string]op.GEMM{
		"large":  {Pass: op.Forward, M: 16384, N: 8192, K: 8192, DType: op.BF16},
		"narrow": {Pass: op.Forward, M: 64, N: 512, K: 8192, DType: op.BF16},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Seconds(g)
			}
		})
	}
}
