package costmodel

import (
	"math"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

func TestProfileValidate(t *testing.T) {
	byOp := func(p *Profile, k op.Kind) *Law {
		for i := range p.Laws {
			if p.Laws[i].Op == k {
				return &p.Laws[i]
			}
		}
		t.Fatalf("no law of %s", k)
		return nil
	}
	for name, c := range map[string]struct {
		change func(*Profile)
		want   string
	}{
		"share":          {func(p *Profile) { p.Holdout.Share = 1 }, "holdout.share: 1"},
		"share nan":      {func(p *Profile) { p.Holdout.Share = math.NaN() }, "holdout.share: NaN"},
		"device":         {func(p *Profile) { p.Devices[0].Name = "a b" }, `devices[0].name: "a b"`},
		"device twice":   {func(p *Profile) { p.Devices[1].Name = "fast" }, `devices[1].name: "fast": listed twice`},
		"group":          {func(p *Profile) { p.Groups[0].Nodes = 0 }, "groups[0].nodes: 0"},
		"group twice":    {func(p *Profile) { p.Groups[1].Name = p.Groups[0].Name }, "listed twice"},
		"op":             {func(p *Profile) { p.Laws[0].Op = "magic" }, `laws[0].op: unknown op "magic"`},
		"owner":          {func(p *Profile) { p.Laws[0].Device = "other" }, `laws[0]: "other" is no device or group`},
		"no device":      {func(p *Profile) { p.Laws[0].Device = "" }, "belongs to a device"},
		"no group":       {func(p *Profile) { byOp(p, op.KindSendRecv).Group = "" }, "belongs to a group"},
		"twice":          {func(p *Profile) { p.Laws = append(p.Laws, p.Laws[0]) }, "a second law of attn_fwd (full d64 f32) on fast"},
		"twice, plain":   {func(p *Profile) { p.Laws = append(p.Laws, *byOp(p, op.KindSendRecv)) }, "a second law of send_recv on "},
		"no form":        {func(p *Profile) { p.Laws[0].Linear = nil }, "linear, curve"},
		"wrong form":     {func(p *Profile) { byOp(p, op.KindNorm).Linear = &Linear{Parallel: 1} }, "linear, curve"},
		"spread":         {func(p *Profile) { p.Laws[0].Spread.Lo = 0 }, "spread: [0, 1.1]"},
		"spread nan":     {func(p *Profile) { p.Laws[0].Spread.Hi = math.NaN() }, "spread"},
		"precision":      {func(p *Profile) { p.Laws[0].Variant.DType = "int3" }, `laws[0].variant.dtype: "int3": want f32`},
		"integers":       {func(p *Profile) { p.Laws[0].Variant.DType = op.I8 }, `laws[0].variant.dtype: "i8": want f32`},
		"messages":       {func(p *Profile) { byOp(p, op.KindSendRecv).Variant.DType = "int3" }, `.variant.dtype: "int3": want f64`},
		"held points":    {func(p *Profile) { p.Laws[0].Held.Points = -5 }, "laws[0].held.points: -5: want 0 or more"},
		"held outside":   {func(p *Profile) { p.Laws[0].Held.Outside = -1 }, "laws[0].held.outside: -1: want 0 or more"},
		"held median":    {func(p *Profile) { p.Laws[0].Held.Median = -1 }, "laws[0].held.median: -1: want a finite error of 0 or more"},
		"held p90":       {func(p *Profile) { p.Laws[0].Held.P90 = math.NaN() }, "laws[0].held.p90: NaN"},
		"held p95":       {func(p *Profile) { p.Laws[0].Held.P95 = math.Inf(1) }, "laws[0].held.p95: +Inf"},
		"held bias":      {func(p *Profile) { p.Laws[0].Held.Bias = math.NaN() }, "laws[0].held.bias: NaN"},
		"held coverage":  {func(p *Profile) { p.Laws[0].Held.Coverage = 7 }, "laws[0].held.coverage: 7: want a share of 0 to 1"},
		"fit coverage":   {func(p *Profile) { p.Laws[0].Fit.Coverage = -0.1 }, "laws[0].fit.coverage: -0.1"},
		"rival":          {func(p *Profile) { p.Laws[0].Rivals = []Rival{{Form: "linear", Median: -1}} }, "laws[0].rivals[0].median: -1"},
		"port":           {func(p *Profile) { byOp(p, op.KindSendRecv).Port = &op.Port{} }, "port.peak_bytes_per_s: 0"},
		"port of none":   {func(p *Profile) { p.Laws[0].Port = &op.Port{PerS: 1} }, "port: only collectives"},
		"axes":           {func(p *Profile) { p.Laws[0].Range = p.Laws[0].Range[2:] }, "range: 3 axes"},
		"axis":           {func(p *Profile) { p.Laws[0].Range[0].Axis = "kv_len" }, `range[0].axis: "kv_len": want "q_len"`},
		"range":          {func(p *Profile) { p.Laws[0].Range[0].Min = 0 }, "range[0]: q_len from 0"},
		"parallel":       {func(p *Profile) { p.Laws[0].Linear.Parallel = 0 }, "linear.parallel: 0"},
		"coefficient":    {func(p *Profile) { p.Laws[0].Linear.PerFLOP.Value = -1 }, "linear.s_per_flop: -1"},
		"interval":       {func(p *Profile) { p.Laws[0].Linear.PerRow.Hi = math.Inf(1) }, "linear.s_per_row"},
		"costs nothing":  {func(p *Profile) { p.Laws[0].Linear.PerFLOP = Coef{} }, "every coefficient is 0"},
		"curve form":     {func(p *Profile) { byOp(p, op.KindNorm).Curve.Form = "spline" }, `curve.form: "spline"`},
		"piece":          {func(p *Profile) { byOp(p, op.KindNorm).Curve.Pieces[0].From = -1 }, "curve.pieces[0].from_bytes: -1"},
		"piece free":     {func(p *Profile) { byOp(p, op.KindNorm).Curve.Pieces[0].Beta = Coef{} }, "costs nothing"},
		"piece alpha":    {func(p *Profile) { byOp(p, op.KindNorm).Curve.Pieces[0].Alpha.Lo = 1 }, "curve.pieces[0].alpha_s"},
		"piece beta":     {func(p *Profile) { byOp(p, op.KindNorm).Curve.Pieces[0].Beta.Value = math.NaN() }, "curve.pieces[0].s_per_byte"},
		"knot":           {func(p *Profile) { byOp(p, op.KindNorm).Curve = &Curve{Form: LogLog, Knots: []Knot{{1, 0}}} }, "curve.time_s[0]: 0: must be positive"},
		"falling knots":  {func(p *Profile) { byOp(p, op.KindNorm).Curve = &Curve{Form: LogLog, Knots: []Knot{{1, 2}, {2, 1}}} }, "curve.time_s[1]: 1 after 2: must not fall"},
		"knots together": {func(p *Profile) { byOp(p, op.KindNorm).Curve = &Curve{Form: LogLog, Knots: []Knot{{1, 2}, {1, 3}}} }, "curve.bytes[1]: 1: must rise"},
	} {
		p := usual(t)
		c.change(p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestProfileValidateNamesTheFirstField, the same one every time.
func TestProfileValidateNamesTheFirstField(t *testing.T) {
	p := usual(t)
	p.Laws[0].Correction, p.Laws[0].Width = &Field{}, &Field{}
	for range 50 {
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "correction.axes: 0") {
			t.Fatal(err)
		}
	}
}

// All points of a law that was borrowed are outside its range; beside none inside they are no
// impossible number.
func TestPointsOutsideCountBesideThoseInside(t *testing.T) {
	e := FitError{Points: 0, Outside: 5}
	if err := e.validate(); err != nil {
		t.Error(err)
	}
}
