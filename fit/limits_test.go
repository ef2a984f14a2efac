package fit

import (
	"bytes"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
)

// The built-in limits start from the accuracy asked of stored device data:
// attention from 4k on 5 % mean, 15 % P95, 3 % bias, 10 % below; GEMM 5 %, 8 % below 1 GFLOP;
// collectives 10 % inside a node, 15 % between nodes, 20 % over PCIe.
func TestBuiltInLimits(t *testing.T) {
	f := DefaultLimits()
	node := op.GroupType{Nodes: 1, Link: "nvlink"}
	for _, c := range []struct {
		stratum CheckedStratum
		group   op.GroupType
		want    StratumBound
	}{
		{CheckedStratum{Family: FamilyAttention, Band: "4k-16k"}, op.GroupType{}, StratumBound{MAPE: 0.05, P95: 0.15, Bias: 0.03}},
		{CheckedStratum{Family: FamilyAttention, Band: ">=64k"}, op.GroupType{}, StratumBound{MAPE: 0.05, P95: 0.15, Bias: 0.03}},
		{CheckedStratum{Family: FamilyAttention, Band: "<4k"}, op.GroupType{}, StratumBound{MAPE: 0.10}},
		{CheckedStratum{Family: FamilyGEMM}, op.GroupType{}, StratumBound{MAPE: 0.05}},
		{CheckedStratum{Family: FamilyGEMM, Band: "1-100 GFLOP"}, op.GroupType{}, StratumBound{MAPE: 0.05}},
		{CheckedStratum{Family: FamilyGEMM, Band: "<1 GFLOP"}, op.GroupType{}, StratumBound{MAPE: 0.08}},
		{CheckedStratum{Family: FamilyCollective}, node, StratumBound{MAPE: 0.10}},
		{CheckedStratum{Family: FamilyCollective}, op.GroupType{Nodes: 2, Link: "ib"}, StratumBound{MAPE: 0.15}},
		{CheckedStratum{Family: FamilyCollective}, op.GroupType{Nodes: 1, Link: "pcie"}, StratumBound{MAPE: 0.20}},
	} {
		c.stratum.Source = costmodel.Interpolated
		c.stratum.On = "h100_sxm"
		if l := f.of(&c.stratum, c.group); l == nil || l.StratumBound != c.want {
			t.Errorf("%+v over %+v: %+v, want %+v", c.stratum, c.group, l, c.want)
		}
	}
	again, err := ReadLimits("limits.json", bytes.NewReader(builtIn))
	if err != nil || again.Revision != f.Revision {
		t.Errorf("%v, %+v", err, again)
	}
}

func TestBadLimitsAreRefused(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{`evenkeel.limits/v1`, `evenkeel.limits/v2`, "limits"},
		{`"revision": 4`, `"revision": 0`, "revision: 0: must be at least 1"},
		{`"revision": 4,`, ``, "revision: 0: must be at least 1, and a document without one reads so"},
		{`"family": "gemm", "median"`, `"family": "attention", "median"`, `families[1].family: "attention": listed twice`},
		{`"median": 0.08`, `"median": 8`, ""},
		{`"median": 0.08`, `"median": 80`, "families[0].median, p90: 80, 0.3: want log ratios above 0 and below 10"},
		{`"family": "layer", "median"`, `"family": "warp", "median"`, `families[4].family: "warp"`},
		{`"id": "gemm"`, `"id": "layer"`, `strata[8].id: "layer": listed twice`},
		{`"id": "gemm"`, `"id": ""`, "strata[4].id: missing"},
		{`"bands": ["<4k"]`, `"bands": ["<5k"]`, `strata[1].bands[0]: "<5k": want one of`},
		{`"sources": ["extrapolated"]`, `"sources": ["measured"]`, `strata[9].sources[0]: "measured": want one of`},
		{`"nodes": "several"`, `"nodes": "two"`, `strata[6].nodes: "two": want one or several`},
		{`"links": ["*pcie*"]`, `"ops": ["warp"]`, `strata[5].ops[0]: "warp": no op of this name measures time`},
		{`"mape": 0.05`, `"mape": -1`, "strata[2].mape: -1: want a log ratio"},
		{`"least": 0.70`, `"least": 70`, "coverage.least: 70: want a share from 0 (no limit) to below 1"},
		{`"reason": "` + DefaultLimits().Coverage.Reason, `"reason": "`, "coverage.reason: missing"},
		{`"reason": "as attention"`, `"reason": ""`, "families[1].reason: missing"},
		{`"mape": 0.10`, `"mpae": 0.10`, "mpae"},
		{`"mape": 0.10`, `"mape": NaN`, "NaN"},
	} {
		text := strings.Replace(string(builtIn), c.old, c.new, 1)
		if text == string(builtIn) {
			t.Fatalf("%s is not in the document", c.old)
		}
		_, err := ReadLimits("mine.json", strings.NewReader(text))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.new, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "mine.json")):
			t.Errorf("%s: got %v, want %s", c.new, err, c.want)
		}
	}
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"cpu:1", "cpu:1", true},
		{"cpu:1", "cpu:12", false},
		{"*", "", true},
		{"*cpu:*", "2 cpu:1 over unix_socket", true},
		{"*cpu:*", "h100_sxm", false},
		{"a*b*c", "a/x/b/c", true},
		{"a*b*c", "acb", false},
		{"*pcie*", "pcie_gen5", true},
		{"ab*ba", "aba", false},
		{"*b", "ab", true},
		{"a*", "ba", false},
	} {
		if got := like(c.pattern, c.name); got != c.want {
			t.Errorf("like(%q, %q) = %v", c.pattern, c.name, got)
		}
	}
}

// --max-error replaces the limits that there are and adds none where a stratum
// is not gated.
func TestOverrideReplacesLimits(t *testing.T) {
	f := DefaultLimits()
	before, err := doc.Encode(f)
	if err != nil {
		t.Fatal(err)
	}
	g := f.Override(FamilyGEMM, 0.01)
	after, err := doc.Encode(f)
	if err != nil || !bytes.Equal(before, after) {
		t.Error("the limits that were overridden changed")
	}
	if l := g.OfFamily(FamilyGEMM); l != (Limit{Median: 0.01, P90: 0.03}) || g.OfFamily(FamilyAttention) != f.OfFamily(FamilyAttention) {
		t.Errorf("%v", l)
	}
	gemm := CheckedStratum{Family: FamilyGEMM, On: "gpu", Source: costmodel.Interpolated}
	if l := g.of(&gemm, op.GroupType{}); l.StratumBound != (StratumBound{MAPE: 0.01, P95: 0.03, Bias: 0.01}) {
		t.Errorf("%+v", l)
	}
	for _, source := range judgedSources() {
		gemm.Source = source
		if l := g.of(&gemm, op.GroupType{}); l == nil || l.StratumBound != (StratumBound{MAPE: 0.01, P95: 0.03, Bias: 0.01}) {
			t.Errorf("%s: %+v", source, l)
		}
	}
	gemm.On = "cpu:1"
	if l := g.of(&gemm, op.GroupType{}); l.ID != "cpu-not-gated" {
		t.Errorf("%+v", l)
	}
	attention := CheckedStratum{Family: FamilyAttention, On: "gpu", Band: "4k-16k", Source: costmodel.Interpolated}
	if l := g.of(&attention, op.GroupType{}); l.ID != "attention-long" {
		t.Errorf("%+v", l)
	}
	f.Strata = []StratumLimit{{ID: "all", StratumBound: StratumBound{MAPE: 0.5}}}
	g = f.Override(FamilyGEMM, 0.01)
	if a, b := g.of(&attention, op.GroupType{}), g.of(&gemm, op.GroupType{}); a.MAPE != 0.5 || b.MAPE != 0.01 {
		t.Errorf("a limit of all families: attention %+v, gemm %+v", a, b)
	}
}

func FuzzReadLimits(f *testing.F) {
	f.Add(builtIn)
	f.Add([]byte(`{"schema":"evenkeel.limits/v1","tool":"","created":"","revision":1,"families":[],"strata":[{"id":"x","on":["*"],"reason":"y"}]}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := ReadLimits("fuzz.json", bytes.NewReader(data))
		if err != nil {
			return
		}
		if _, err := doc.Encode(l); err != nil {
			t.Fatalf("read, but cannot be written: %v", err)
		}
		s := CheckedStratum{Family: FamilyGEMM, On: "gpu", Source: costmodel.Interpolated, Band: "<1 GFLOP"}
		l.of(&s, op.GroupType{})
		l.Override(FamilyGEMM, 0.1)
	})
}
