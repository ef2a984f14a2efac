package costmodel

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

func TestCurveSeconds(t *testing.T) {
	logs := &Curve{Form: LogLog, Knots: []Knot{{100, 1}, {10000, 4}, {20000, 6}}}
	lone := &Curve{Form: LogLog, Knots: []Knot{{100, 1}}}
	steps := &Curve{Form: AlphaBeta, Pieces: []Piece{{0, coef(1), coef(0.1)}, {100, coef(5), coef(0.01)}}}
	for _, c := range []struct {
		curve *Curve
		x     units.Bytes
		want  units.Seconds
	}{
		{logs, 0, 1},
		{logs, 100, 1},
		{logs, 1000, 2}, // half way between 100 and 10,000 in logarithms: sqrt(1 x 4)
		{logs, 10000, 4},
		{logs, 40000, 10}, // the last stretch's 2 s per 10,000 bytes goes on
		{lone, 50, 1},
		{lone, 300, 3},
		{steps, 0, 1},
		{steps, 99, 10.9},
		{steps, 100, 6},
		{steps, 1000, 15},
	} {
		if got := c.curve.Seconds(c.x); !near(got, c.want, 1e-12) {
			t.Errorf("%s at %d: %v, want %v", c.curve.Form, c.x, got, c.want)
		}
	}
}

// TestFloorPerByteIsAFloor: no size up to the most costs less a byte, and some
// size costs as little.
func TestFloorPerByteIsAFloor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := curveGen().Draw(t, "curve")
		most := units.Bytes(rapid.IntRange(1, 300).Draw(t, "most"))
		floor, least := c.FloorPerByte(most), units.Seconds(math.Inf(1))
		for x := units.Bytes(1); x <= most; x++ {
			least = min(least, c.Seconds(x)/units.Seconds(x))
		}
		if !near(floor, least, 1e-9) {
			t.Fatalf("%+v to %d: floor %v, least %v", c, most, floor, least)
		}
	})
}

func curveGen() *rapid.Generator[*Curve] {
	return rapid.Custom(func(t *rapid.T) *Curve {
		from, at := units.Bytes(0), units.Seconds(0)
		c := &Curve{Form: rapid.SampledFrom([]CurveForm{AlphaBeta, LogLog}).Draw(t, "form")}
		for range rapid.IntRange(1, 4).Draw(t, "pieces") {
			if c.Form == AlphaBeta {
				c.Pieces = append(c.Pieces, Piece{from, coef(rapid.Float64Range(0.1, 5).Draw(t, "alpha")), coef(rapid.Float64Range(0, 1).Draw(t, "beta"))})
			}
			from += units.Bytes(rapid.IntRange(1, 90).Draw(t, "step"))
			at += units.Seconds(rapid.Float64Range(0.1, 5).Draw(t, "time"))
			if c.Form == LogLog {
				c.Knots = append(c.Knots, Knot{from, at})
			}
		}
		return c
	})
}

// TestPredictBeyond: two doublings outside widen a 10 % interval to the third power.
func TestPredictBeyond(t *testing.T) {
	law := Law{Op: op.KindAdamW, Curve: line(0, 1), Range: []AxisRange{{"params", 100, 1000}}, Spread: tenPercent}
	for _, c := range []struct {
		params int64
		beyond float64
		source Source
	}{
		{100, 0, Interpolated},
		{1000, 0, Interpolated},
		{1100, math.Log2(1.1), Interpolated},
		{4000, 2, Extrapolated},
		{25, 2, Extrapolated},
	} {
		e := law.Predict(op.AdamW{Params: c.params})
		hi := float64(e.Mid) * math.Pow(1.1, 1+c.beyond)
		if e.Source != c.source || !near(e.Mid, units.Seconds(28*c.params), 1e-12) || !near(e.Hi, units.Seconds(hi), 1e-9) {
			t.Errorf("%d: %+v, want up to %v, %s", c.params, e, hi, c.source)
		}
	}
}

// TestLargerMessagesMoveNoSlower: the interval of a message that is larger than the measured
// ones ends where it would move at the rate of the largest of these, and widens as ever
// before that, of smaller ones, and of what is no message.
func TestLargerMessagesMoveNoSlower(t *testing.T) {
	const alpha, rate = 10e-6, 10e9 // s, bytes/s
	for _, c := range []struct {
		largest, bytes float64
		widest         float64 // times Mid
	}{
		{1 << 20, 1 << 20, 1.5},
		{1 << 20, 1 << 21, 1.5 * (2*alpha + 1<<20/rate) / (alpha + 1<<20/rate)}, // half of the bytes are on the busiest port
		{1 << 20, 1 << 30, 1.5 * (1024*alpha + 1<<29/rate) / (alpha + 1<<29/rate)},
		{1 << 10, 1 << 12, math.Pow(1.5, 3)}, // of next to nothing but latency the rate says little
		{1 << 30, 1 << 9, 1.5 * 1.5},         // smaller than the smallest
	} {
		law := Law{
			Op: op.KindAllGather, Group: "2 gpu over nvlink", Spread: Spread{Lo: 1 / 1.5, Hi: 1.5},
			Curve: line(alpha, rate), Range: []AxisRange{{"bytes", 1 << 10, c.largest}},
		}
		e := law.Predict(op.AllGather{Message: op.Message{Group: 2, Bytes: units.Bytes(c.bytes)}})
		if got := float64(e.Hi / e.Mid); math.Abs(got/c.widest-1) > 1e-9 {
			t.Errorf("%.0f bytes, measured up to %.0f: up to %v times as long, want %v", c.bytes, c.largest, got, c.widest)
		}
	}
}

// TestSlowingMessagesKeepTheirInterval: where a law says that larger messages move slower, its
// interval beyond the measured ones is no narrower than within.
func TestSlowingMessagesKeepTheirInterval(t *testing.T) {
	law := Law{
		Op: op.KindSendRecv, Group: "2 gpu over nvlink", Spread: Spread{Lo: 1 / 1.5, Hi: 1.5}, Range: []AxisRange{{"bytes", 1 << 10, 1 << 20}},
		Curve: &Curve{Form: LogLog, Knots: []Knot{{Bytes: 1 << 10, Seconds: 1e-5}, {Bytes: 1 << 20, Seconds: 1e-4}, {Bytes: 1 << 22, Seconds: 1e-3}}},
	}
	if e := law.Predict(op.SendRecv{Message: op.Message{Group: 2, Bytes: 1 << 22}}); !near(e.Hi, 1.5*e.Mid, 1e-9) {
		t.Errorf("%+v, want up to half as long again", e)
	}
}

// TestNoMessageBeatsItsPort: whatever a law says of a message, neither it nor the lower end of
// its interval is less than the port's least time, and a law that stays above is left alone.
func TestNoMessageBeatsItsPort(t *testing.T) {
	const peak, size = 450e9, 1 << 30 // NVLink 4; a GiB takes 2.386 ms
	const least = size / peak
	wide := Spread{Lo: 1. / 12, Hi: 2}
	for _, c := range []struct {
		name        string
		rate        float64 // of the law, bytes/s
		kind        op.Kind
		inNetwork   bool
		lo, mid, hi float64 // of least
	}{
		{"an end below", 330e9, op.KindSendRecv, false, 1, 450. / 330, 2 * 450. / 330},
		{"both below", 900e9, op.KindSendRecv, false, 1, 1, 2},
		{"far above", 10e9, op.KindSendRecv, false, 45. / 12, 45, 90},
		{"two sends of almost all", 400e9, op.KindAllReduce, false, 1.75, 1.75 * 450 / 400, 3.5 * 450 / 400},
		{"one, where a switch adds up", 480e9, op.KindAllReduce, true, 1, 1.75 * 450 / 480, 3.5 * 450 / 480},
	} {
		law := Law{
			Op: c.kind, Group: "8 gpu over nvlink", Curve: line(0, c.rate), Spread: wide, Port: &op.Port{PerS: peak, InNetwork: c.inNetwork},
			Range: []AxisRange{{"bytes", 1 << 10, size}},
		}
		m := op.Message{Group: 8, Bytes: size}
		e := law.Predict(op.OfMessage(c.kind, m))
		for _, end := range []struct{ got, want float64 }{{float64(e.Lo), c.lo}, {float64(e.Mid), c.mid}, {float64(e.Hi), c.hi}} {
			if math.Abs(end.got/(end.want*least)-1) > 1e-9 {
				t.Errorf("%s: %+v, want %v, %v and %v times %v", c.name, e, c.lo, c.mid, c.hi, least)
			}
		}
		if got := law.MessageSeconds(c.kind, m); !near(got, e.Mid, 1e-12) {
			t.Errorf("%s: %v of a message, %v of its shape", c.name, got, e.Mid)
		}
		if half := law.Slowed(0.5); !near(half.Predict(op.OfMessage(c.kind, m)).Lo, e.Lo/2, 1e-12) || law.Port.PerS != peak {
			t.Errorf("%s: in half the time %+v, port %+v", c.name, half.Predict(op.OfMessage(c.kind, m)), law.Port)
		}
	}
}

// TestPortHoldsWherePredictionsWiden: an interval of half widths that are known size by size
// ends at the port as well, and one without a port does not.
func TestPortHoldsWherePredictionsWiden(t *testing.T) {
	law := Law{
		Op: op.KindSendRecv, Group: "2 gpu over nvlink", Spread: tenPercent, Range: []AxisRange{{"bytes", 1, 1000}},
		Curve: &Curve{Form: LogLog, Knots: []Knot{{1, 1}, {1000, 1000}}, HalfWidths: []float64{0.1, 2}},
	}
	far := op.SendRecv{Message: op.Message{Group: 2, Bytes: 8000}}
	if e := law.Predict(far); !near(e.Lo, units.Seconds(8000*math.Exp(-2)), 1e-9) {
		t.Errorf("without a port %+v", e)
	}
	law.Port = &op.Port{PerS: 2}
	if e := law.Predict(far); !near(e.Lo, 4000, 1e-9) || !near(e.Mid, 8000, 1e-9) {
		t.Errorf("%+v, want from 4000 s on", e)
	}
}

// TestMessagesHaveWidthsBySize: inside the range a message's interval is as wide as Width says;
// beyond it, as wide as the half widths of a curve that has some, or else widening from there,
// and never so far that a larger message would move slower than the largest one.
func TestMessagesHaveWidthsBySize(t *testing.T) {
	const alpha, rate = 10e-6, 10e9 // s, bytes/s
	widths := &Field{Axes: []FieldAxis{{VolumeAxis, []float64{1 << 10, 1 << 20}}}, Decay: 1e9, Step: 0.001, Values: NodeValues{-1000, -3000}}
	message := func(bytes float64) op.Shape {
		return op.SendRecv{Message: op.Message{Group: 2, Bytes: units.Bytes(bytes)}}
	}
	plain := Law{Op: op.KindSendRecv, Group: "2 gpu over nvlink", Spread: Spread{Lo: 0.5, Hi: 2}, Width: widths, Curve: line(alpha, rate), Range: []AxisRange{{"bytes", 1 << 10, 1 << 20}}}
	table := plain
	table.Curve = &Curve{Form: LogLog, Knots: []Knot{{1 << 10, 1e-5}, {1 << 20, 1e-4}, {1 << 22, 4e-4}}, HalfWidths: []float64{0.5, 0.5, 0.7}}
	most := (1024*alpha + 1<<30/rate) / (alpha + 1<<30/rate)
	for _, c := range []struct {
		name  string
		law   *Law
		bytes float64
		half  float64 // log(Hi/Mid)
	}{
		{"smallest", &plain, 1 << 10, math.Exp(-1)},
		{"between", &plain, 1 << 15, math.Exp(-2)},
		{"largest", &table, 1 << 20, math.Exp(-3)},
		{"beyond a table", &table, 1 << 22, 0.7},
		{"smaller than all", &plain, 1 << 8, 3 * math.Exp(-1)},
		{"far beyond a line", &plain, 1 << 30, min(11*math.Exp(-3), math.Exp(-3)+math.Log(most))},
	} {
		e := c.law.Predict(message(c.bytes))
		if got := math.Log(float64(e.Hi / e.Mid)); math.Abs(got-c.half) > 1e-6 {
			t.Errorf("%s: a half width of %v, want %v", c.name, got, c.half)
		}
	}
	between := message(1 << 15)
	if n := testing.AllocsPerRun(100, func() { plain.Predict(between) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestPredictDoesNotAllocate(t *testing.T) {
	p := usual(t)
	for i := range p.Laws {
		if p.Laws[i].Group != "" {
			p.Laws[i].Port = &op.Port{PerS: 1e9, InNetwork: true}
		}
	}
	q := NewPredictor(p)
	for on, shape := range map[string]op.Shape{
		"fast":           op.AttnFwd{Attention: op.Attention{Mask: op.Full, QLen: 5, KVLen: 5, QHeads: 2, KVHeads: 2, HeadDim: 64, DType: op.F32}},
		p.Groups[0].Name: op.SendRecv{Message: op.Message{Group: p.Groups[0].Ranks(), Bytes: 1 << 20}},
	} {
		if n := testing.AllocsPerRun(100, func() {
			if _, err := q.Time(on, shape); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", shape.Kind(), n)
		}
	}
}

func TestOverTakesTheNearestGroup(t *testing.T) {
	p := &Profile{}
	for _, g := range []struct {
		device       string
		count, nodes int
		link         string
	}{{"a", 2, 1, "bus"}, {"a", 8, 1, "bus"}, {"a", 8, 2, "net"}, {"b", 4, 1, "bus"}} {
		group := op.NewGroupType([]op.Member{{Device: g.device, Count: g.count}}, g.nodes, g.link)
		p.Groups = append(p.Groups, group)
		p.Laws = append(p.Laws, Law{Op: op.KindSendRecv, Group: group.Name, Curve: line(1, 1), Range: wide(op.KindSendRecv), Spread: tenPercent})
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	q := NewPredictor(p)
	for _, c := range []struct {
		link   string
		device string
		count  int
		want   string
		factor float64
	}{
		{"bus", "a", 8, "8 a over bus", 1},
		{"net", "a", 8, "8 a over net on 2 nodes", 1},
		{"bus", "a", 3, "3 a over bus", 1},              // between two measured groups
		{"bus", "c", 3, "4 b over bus", transferFactor}, // a tie goes to the larger group
		{"bus", "a", 9, "8 a over bus", transferFactor},
		{"net", "b", 2, "8 a over net on 2 nodes", transferFactor},
	} {
		law, factor, err := q.Over(c.link, op.KindSendRecv, []op.Member{{Device: c.device, Count: c.count}})
		if err != nil || law.Group != c.want || factor != c.factor {
			t.Errorf("%d %s over %s: %+v, %v, %v", c.count, c.device, c.link, law, factor, err)
		}
	}
	if _, _, err := q.Over("air", op.KindSendRecv, nil); err == nil {
		t.Error("a link class without laws is no error")
	}
}

// A group of types that were measured only beside others goes by the nearest of those,
// however near in size a group is that lacks one of them.
func TestOverTakesGroupsThatHaveAllTypes(t *testing.T) {
	p := &Profile{}
	for _, members := range [][]op.Member{{{Device: "a", Count: 4}}, {{Device: "a", Count: 4}, {Device: "b", Count: 4}, {Device: "c", Count: 16}}, {{Device: "a", Count: 4}, {Device: "b", Count: 4}, {Device: "c", Count: 4}}} {
		g := op.NewGroupType(members, 1, "net")
		p.Groups = append(p.Groups, g)
		p.Laws = append(p.Laws, Law{Op: op.KindSendRecv, Group: g.Name, Curve: wireLine(1e-5, 1e10), Range: everySize(op.KindSendRecv), Spread: Spread{Lo: 0.9, Hi: 1.1}})
	}
	q := NewPredictor(p)
	for _, c := range []struct {
		members []op.Member
		want    string
	}{
		{[]op.Member{{Device: "a", Count: 2}}, p.Groups[0].Name},
		{[]op.Member{{Device: "a", Count: 2}, {Device: "b", Count: 2}}, p.Groups[2].Name},
		{[]op.Member{{Device: "c", Count: 23}}, p.Groups[1].Name},
		{[]op.Member{{Device: "a", Count: 4}, {Device: "d", Count: 1}}, p.Groups[0].Name},
	} {
		law, factor, err := q.Over("net", op.KindSendRecv, c.members)
		if err != nil || law.Group != c.want || factor != transferFactor {
			t.Errorf("%v: %s x %v, %v; want %s", c.members, law.Group, factor, err, c.want)
		}
	}
}

// Where no reduce_scatter was measured, all_reduce at equal bytes on the wire
// stands in, marked; where both are missing, reduce_scatter is named.
func TestAllReduceStandsInForReduceScatter(t *testing.T) {
	group := op.NewGroupType([]op.Member{{Device: "a", Count: 4}}, 1, "bus")
	p := &Profile{Groups: []op.GroupType{group}, Laws: []Law{
		{Op: op.KindAllReduce, Group: group.Name, Curve: line(1, 1), Range: wide(op.KindAllReduce), Spread: tenPercent},
	}}
	q := NewPredictor(p)
	law, factor, err := q.Over("bus", op.KindReduceScatter, group.Members)
	if err != nil || law.Op != op.KindAllReduce || factor != transferFactor {
		t.Fatalf("%+v, %v, %v", law, factor, err)
	}
	scatter := op.ReduceScatter{Message: op.Message{Group: 4, Bytes: 4096}}
	reduce := op.AllReduce{Message: op.Message{Group: 4, Bytes: 2048}} // as many bytes on the wire
	if got, want := Transfer(law, factor, scatter), Transfer(law, factor, reduce); math.Abs(float64(got.Mid-want.Mid)) > 1e-9*float64(want.Mid) || got.Source != Transferred {
		t.Errorf("%+v, want %+v", got, want)
	}
	var missing *MissingLawError
	if _, _, err := q.Over("air", op.KindReduceScatter, group.Members); !errors.As(err, &missing) || missing.Op != op.KindReduceScatter {
		t.Errorf("%v", err)
	}
}

func TestEstimateArithmetic(t *testing.T) {
	a, b := Estimate{9, 10, 11, Measured}, Estimate{16, 20, 24, Extrapolated}
	if got, want := a.Plus(b), (Estimate{25, 30, 35, Extrapolated}); got != want {
		t.Errorf("together %+v, want %+v", got, want)
	}
	if got, want := a.Times(3), (Estimate{27, 30, 33, Measured}); got != want {
		t.Errorf("times %+v, want %+v", got, want)
	}
	if (Estimate{}).Spread() != 0 || a.Spread() != 0.1 {
		t.Errorf("spreads %v, %v", (Estimate{}).Spread(), a.Spread())
	}
	order := []Source{"", Measured, Interpolated, Extrapolated, Transferred, Assumed}
	for i, x := range order {
		for k, y := range order {
			if got := x.Worse(y); got != order[max(i, k)] {
				t.Errorf("the worse of %q and %q is %q", x, y, got)
			}
		}
	}
}
