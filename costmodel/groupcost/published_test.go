package groupcost_test

import (
	"math"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/results/profiles"
)

func published(t testing.TB, name string) *groupcost.Document {
	t.Helper()
	g, err := profiles.LookupGroupCost(name)
	if err != nil {
		t.Fatal(err)
	}
	return g.Model
}

// flexSP is the setting of FlexSP's solver scripts: 8 nodes of 8 GPUs, 30 GB of
// each.
func flexSP(devices int, context units.Tokens) groupcost.Parameters {
	return groupcost.Parameters{Devices: devices, PerNode: 8, Memory: 30 * units.GiB, Context: context, Zero: costmodel.Zero3}
}

func costs(t testing.TB, d *groupcost.Document, p groupcost.Parameters) *groupcost.Costs {
	t.Helper()
	c, err := d.Costs(p)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What the published numbers give for 384,000 tokens on 64 GPUs: 7.8499 x 2^30
// parameters of 16 bytes over 64 GPUs are 2,009.57 MiB, the other 28,710.43 MiB at
// 4.4804 MiB a token 6,407 tokens.
func TestFlexSPCapacity(t *testing.T) {
	c := costs(t, published(t, "flexsp-gpt-7b"), flexSP(64, 384000))
	if len(c.Classes) != 7 {
		t.Fatalf("%d classes, want the powers of two from 1 to 64", len(c.Classes))
	}
	for i, k := range c.Classes {
		if d := 1 << i; k.Degree() != d || k.Cap != units.Tokens(6407*d) || k.One != (d <= 8) || k.Base != 0.6293563 {
			t.Errorf("class %d: %+v", i, k)
		}
	}
}

// The formula with the published coefficients in the published units: ms, MiB and
// GB/s, where MiB by GB/s is read as ms.
func TestFlexSPTimes(t *testing.T) {
	rate := map[int]float64{2: 119.54, 4: 104.07, 8: 96.5, 16: 10.33, 32: 5.94, 64: 4.87, 128: 4.87}
	for _, m := range []struct {
		name          string
		a1, a2        float64
		layers, width float64
	}{
		{"flexsp-gpt-7b", 5.128e-6, 0.1839576, 32, 4096},
		{"flexsp-gpt-13b", 9.2852e-6, 0.3060189, 40, 5120},
		{"flexsp-gpt-30b", 15.4262e-6, 0.8035742, 60, 6656},
	} {
		p := flexSP(128, 192000)
		p.Memory = 80 * units.GiB
		c := costs(t, published(t, m.name), p)
		for i, k := range c.Classes {
			d := float64(k.Degree())
			for _, s := range []float64{128, 4096, 383872} {
				want := (m.a1*s*s + m.a2*s) / d
				if d > 1 {
					want += 16 * m.layers * m.width * s / (1 << 20) / d / rate[k.Degree()]
				}
				if got := float64(c.Time(i, units.Tokens(s))) * 1e3; math.Abs(got/want-1) > 1e-12 {
					t.Errorf("%s, degree %v, %v tokens: %v ms, want %v", m.name, d, s, got, want)
				}
			}
		}
	}
}

// The share of states that each of N devices holds, as published: 1/N, 7/8/N + 1/8,
// 6/8/N + 2/8. Memory that the difference takes is missing from the capacity.
func TestFlexSPZero(t *testing.T) {
	const parameters, perToken = 7.8498687744140625 * (1 << 30), 4.480441895 * (1 << 20)
	for zero, share := range map[costmodel.ZeRO]float64{"": 1.0 / 64, costmodel.Zero2: 7.0/8/64 + 1.0/8, costmodel.Zero1: 6.0/8/64 + 2.0/8, costmodel.Zero0: 1} {
		p := flexSP(64, 384000)
		p.Zero, p.Memory = zero, 200*units.GiB
		want := units.Tokens(math.Floor((float64(p.Memory) - 16*parameters*share) / perToken))
		if got := costs(t, published(t, "flexsp-gpt-7b"), p).Classes[0].Cap; got != want {
			t.Errorf("%q: %d tokens, want %d", zero, got, want)
		}
	}
}

// Contexts that are not published lie on the line through 192K and 384K, where the
// table of positions grows by 4,096 parameters a token; 16 GPUs have less kept.
func TestFlexSPContextAndDevices(t *testing.T) {
	d := published(t, "flexsp-gpt-7b")
	at := func(context units.Tokens) float64 { // bytes of states of one device alone
		p := flexSP(1, context)
		p.PerNode, p.Memory = 1, 1<<50
		return float64(p.Memory) - float64(costs(t, d, p).Classes[0].Cap)*d.AllToAll.Activation
	}
	growth := (at(288000) - at(192000)) / 16 / 96000
	if math.Abs(growth-4096) > 5 {
		t.Errorf("%v parameters a token of context, want a row of 4096", growth)
	}
	few, many := costs(t, d, flexSP(16, 192000)), costs(t, d, flexSP(32, 192000))
	if ratio := float64(few.Classes[0].Cap) / float64(many.Classes[0].Cap); ratio < 1.3 {
		t.Errorf("16 GPUs hold %v times the tokens of 32, want less kept for a token", ratio)
	}
}

func TestFCP(t *testing.T) {
	d := published(t, "fcp")
	ring := costs(t, d, groupcost.Parameters{Devices: 64, PerNode: 16})
	if len(ring.Classes) != 32 || ring.Classes[2].Cap != 3*8192 || ring.Classes[2].One {
		t.Errorf("%d classes, the third %+v", len(ring.Classes), ring.Classes[2])
	}
	// As it is coded: l^2/(c 1e7) + l/(c 1e5) + l/(c 2e5) + 1e-3.
	const l = 131072.0
	const want = l*l/(16*1e7) + l/(16*1e5) + l/(16*2e5) + 1e-3
	if got := float64(ring.Time(15, l)); math.Abs(got-want) > 1e-9 {
		t.Errorf("131,072 tokens on 16: %v s, want %v", got, want)
	}
	heads := costs(t, d, groupcost.Parameters{Devices: 64, PerNode: 16, Budget: 12288, MaxDegree: 16, PowersOfTwo: true})
	var degrees []int
	for _, k := range heads.Classes {
		degrees = append(degrees, k.Degree())
	}
	if len(degrees) != 5 || degrees[4] != 16 || heads.Classes[4].Cap != 16*12288 {
		t.Errorf("degrees %v, %+v", degrees, heads.Classes[4])
	}
}

func TestPublishedErrors(t *testing.T) {
	for _, c := range []struct {
		name, model string
		change      func(*groupcost.Parameters)
		want        string
	}{
		{"no devices", "fcp", func(p *groupcost.Parameters) { p.Devices = 0 }, "devices: 0"},
		{"large node", "fcp", func(p *groupcost.Parameters) { p.PerNode = 65 }, "devices of a node: 65"},
		{"little memory", "flexsp-gpt-30b", func(p *groupcost.Parameters) { p.Memory = units.GiB }, "states"},
		{"long context", "flexsp-gpt-7b", func(p *groupcost.Parameters) { p.Context = 1e9 }, "a table of 1000000000 positions among them, alone take 955 GiB of a device; give it more memory, more devices or a shorter context"},
		{"no context", "flexsp-gpt-7b", func(p *groupcost.Parameters) { p.Context = 0 }, "context_tokens: 0"},
		{"stage", "flexsp-gpt-7b", func(p *groupcost.Parameters) { p.Zero = "zero4" }, `"zero4"`},
		{"budget", "fcp", func(p *groupcost.Parameters) { p.Budget = -1 }, "budget_tokens: -1"},
		{"degree", "fcp", func(p *groupcost.Parameters) { p.MaxDegree = 65 }, "max_degree: 65"},
	} {
		p := flexSP(64, 192000)
		c.change(&p)
		if _, err := published(t, c.model).Costs(p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Documents broken in any field are refused, and none makes costs that fall or are
// not numbers.
func FuzzDocument(f *testing.F) {
	for _, g := range profiles.GroupCosts() {
		data, err := doc.Encode(g.Model)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add([]byte(strings.Replace(string(data), "0.", "-0.", 1)))
		f.Add([]byte(strings.Replace(string(data), `"degree": 4`, `"degree": 5`, 1)))
		f.Add([]byte(strings.Replace(string(data), "all_to_all", "flexible", 1)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var d groupcost.Document
		if doc.Decode("fuzz", data, &d) != nil {
			return
		}
		p := flexSP(64, 192000)
		c, err := d.Costs(p)
		if err != nil {
			return
		}
		for i, k := range c.Classes {
			short, long := float64(c.Time(i, 100)), float64(c.Time(i, 10000))
			if !(short >= 0 && short < long && !math.IsInf(long, 0)) || k.Cap < 1 {
				t.Errorf("%+v: 100 tokens take %v, 10,000 take %v", k, short, long)
			}
		}
	})
}

func TestPublishedAreFound(t *testing.T) {
	all := profiles.GroupCosts()
	if len(all) != 4 {
		t.Fatalf("%d published models", len(all))
	}
	for _, g := range all {
		if g.Name != g.Model.Name {
			t.Errorf("%s calls itself %s", g.Name, g.Model.Name)
		}
	}
	if _, err := profiles.LookupGroupCost("flexsp-gpt-7"); err == nil || !strings.Contains(err.Error(), `did you mean "flexsp-gpt-7b"?`) {
		t.Error(err)
	}
}
