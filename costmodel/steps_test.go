package costmodel

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

func ringSteps() Steps {
	return Steps{
		Op: op.KindAllGather, Device: "a", Link: "bus", Ranks: []int{2, 4}, Alpha: 1e-5, PerRank: 1e-6, PerByte: 1e-10, PerRoot: 1e-9,
		Chunks: []ChunkFactor{{64, 1, 0.1}, {1 << 10, 1.2, 0.2}, {1 << 20, 0.9, 0.15}, {1 << 30, 1, 0.4}},
	}
}

// At its chunks a law is the formula, where that does not fall.
func TestStepsLaw(t *testing.T) {
	s := ringSteps()
	law := s.Law(8)
	for i, want := range []float64{
		// alpha + 6 per_rank + per_byte 7/8 s + per_root sqrt(s), times the factor, at s = 8 chunks
		1.6e-5 + 1e-10*7*64 + 1e-9*math.Sqrt(8*64),
		1.2 * (1.6e-5 + 1e-10*7*1024 + 1e-9*math.Sqrt(8*1024)),
		0.9 * (1.6e-5 + 1e-10*7*(1<<20) + 1e-9*math.Sqrt(8*(1<<20))),
	} {
		shape := op.AllGather{Message: op.Message{Group: 8, Bytes: 8 * s.Chunks[i].Bytes}}
		if got := float64(law.Seconds(shape)); math.Abs(got/want-1) > 1e-9 {
			t.Errorf("chunk %d: %v, want %v", s.Chunks[i].Bytes, got, want)
		}
		if e := law.Predict(shape); e.Source.Worse(Transferred) != e.Source {
			t.Errorf("chunk %d: source %s", s.Chunks[i].Bytes, e.Source)
		}
	}
	if near, far := law.Curve.HalfWidths[1], s.Law(32).Curve.HalfWidths[1]; !(far > near) {
		t.Errorf("half widths %v among 8 and %v among 32: want it wider farther off", near, far)
	}
	if !strings.Contains(law.From, "2 and 4 a") || law.Group != "8 a over bus" {
		t.Errorf("%q from %q", law.Group, law.From)
	}
}

// Whatever the steps, the law of every group size is valid and never falls.
func TestStepsLawsNeverFall(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := ringSteps()
		s.Op = rapid.SampledFrom(messageOps()).Draw(rt, "op")
		s.Alpha, s.PerRank = rapid.Float64Range(1e-7, 1e-3).Draw(rt, "alpha"), rapid.Float64Range(0, 1e-4).Draw(rt, "per_rank")
		for i := range s.Chunks {
			s.Chunks[i].Factor = rapid.Float64Range(0.2, 5).Draw(rt, "factor")
		}
		n := rapid.IntRange(2, 2000).Draw(rt, "n")
		law := s.Law(n)
		if err := law.validate(); err != nil {
			rt.Fatal(err)
		}
		last := units.Seconds(0)
		for bytes := units.Bytes(1); bytes < 1<<40; bytes = bytes*3/2 + 1 {
			now := law.Seconds(op.OfMessage(s.Op, op.Message{Group: n, Bytes: bytes}))
			if now < last*(1-1e-12) || !(now > 0) {
				rt.Fatalf("%v at %d bytes after %v", now, bytes, last)
			}
			last = now
		}
	})
}

func TestStepsAreValidated(t *testing.T) {
	for want, change := range map[string]func(*Steps){
		"op":                        func(s *Steps) { s.Op = op.KindGEMM },
		"link":                      func(s *Steps) { s.Link = "" },
		"device":                    func(s *Steps) { s.Device = "z" },
		"measured_ranks[1]: 2":      func(s *Steps) { s.Ranks = []int{2, 2} },
		"measured_ranks, chunks":    func(s *Steps) { s.Chunks = nil },
		"alpha_s":                   func(s *Steps) { s.Alpha = 0 },
		"s_per_byte":                func(s *Steps) { s.PerByte = math.Inf(1) },
		"s_per_rank":                func(s *Steps) { s.PerRank = -1 },
		"chunks.chunk_bytes[1]":     func(s *Steps) { s.Chunks[1].Bytes = 64 },
		"chunks.factors[2]: NaN":    func(s *Steps) { s.Chunks[2].Factor = math.NaN() },
		"chunks.half_widths[0]: -1": func(s *Steps) { s.Chunks[0].Half = -1 },
		"port.peak_bytes_per_s":     func(s *Steps) { s.Port = &op.Port{PerS: -1} },
	} {
		p := &Profile{Steps: []Steps{ringSteps()}}
		known := map[string]bool{"a": true}
		if err := p.validateSteps(known); err != nil {
			t.Fatal(err)
		}
		change(&p.Steps[0])
		if err := p.validateSteps(known); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	p := &Profile{Steps: []Steps{ringSteps(), ringSteps()}}
	if err := p.validateSteps(map[string]bool{"a": true}); err == nil {
		t.Error("the same steps twice are valid")
	}
}

// A group that was not measured is predicted from those around it, beyond them
// by the steps, and marked as transferred either way.
func TestOverPredictsUnmeasuredGroups(t *testing.T) {
	p := &Profile{Steps: []Steps{ringSteps()}}
	p.Steps[0].Port = &op.Port{PerS: 3e9}
	for _, n := range []int{2, 4} {
		g := op.NewGroupType([]op.Member{{Device: "a", Count: n}}, 1, "bus")
		p.Groups = append(p.Groups, g)
		p.Laws = append(p.Laws, Law{
			Op: op.KindAllGather, Group: g.Name, Curve: line(float64(n), 1e6/float64(n)), Port: &op.Port{PerS: units.BytesPerS(n) * 1e9}, Range: []AxisRange{{"bytes", 1 << 10, 1 << 20}}, Spread: tenPercent,
		})
	}
	q := NewPredictor(p)
	members := func(n int) []op.Member { return []op.Member{{Device: "a", Count: n}} }
	three, factor, err := q.Over("bus", op.KindAllGather, members(3))
	if err != nil || factor != 1 {
		t.Fatal(factor, err)
	}
	// line(a, r) takes a + x/r seconds of x bytes on the port.
	at := func(n int) float64 { return float64(n) * (1 + 1e-6*float64(n-1)/float64(n)*(1<<14)) }
	w := math.Log(1.5) / math.Log(2)
	want := math.Pow(at(2), 1-w) * math.Pow(at(4), w)
	e := three.Predict(op.AllGather{Message: op.Message{Group: 3, Bytes: 1 << 14}})
	if math.Abs(float64(e.Mid)/want-1) > 1e-3 || e.Source != Transferred {
		t.Errorf("%v from %s, want %v, %s", e.Mid, e.Source, want, Transferred)
	}
	if three.Port == nil || three.Port.PerS != 4e9 {
		t.Errorf("bound by %+v, want the wider of those around it", three.Port)
	}
	again, _, _ := q.Over("bus", op.KindAllGather, members(3))
	if again != three {
		t.Error("the law of an unmeasured group is made twice")
	}
	eight, factor, err := q.Over("bus", op.KindAllGather, members(8))
	if err != nil || factor != 1 || eight.Group != "8 a over bus" || eight.From == "" || eight.Port != p.Steps[0].Port {
		t.Errorf("%+v, %v, %v", eight, factor, err)
	}
	if other, factor, err := q.Over("bus", op.KindAllGather, []op.Member{{Device: "b", Count: 8}}); err != nil || factor != transferFactor || other.Group != "4 a over bus" {
		t.Errorf("%+v, %v, %v", other, factor, err)
	}
}

// Below the messages that both groups around it were measured with, the law of a group between
// them falls as theirs do, and lies between them down to one byte.
func TestBetweenGroupsBelowTheirMessages(t *testing.T) {
	knots := func(from units.Bytes, alpha float64) *Curve {
		c := &Curve{Form: LogLog}
		for x := from; x <= 1<<30; x *= 2 {
			c.Knots, c.HalfWidths = append(c.Knots, Knot{x, units.Seconds(alpha + float64(x)/1e9)}), append(c.HalfWidths, 0.1)
		}
		return c
	}
	for name, curves := range map[string][2]*Curve{
		"knots":          {knots(1<<12, 1e-5), knots(1<<8, 3e-5)},
		"a line":         {knots(1<<12, 1e-5), line(3e-5, 1e9)},
		"lines":          {line(1e-5, 1e9), line(3e-5, 1e9)},
		"one knot apart": {knots(1<<20, 1e-5), knots(1<<19, 1.1e-5)},
	} {
		var around []sized
		for i, n := range []int{2, 8} {
			least := float64(units.Bytes(1<<24) >> i)
			around = append(around, sized{n, &Law{Op: op.KindAllReduce, Curve: curves[i], Range: []AxisRange{{"bytes", least, 1 << 28}}, Spread: tenPercent}})
		}
		law := between(4, around[0], around[1], op.NewGroupType([]op.Member{{Device: "a", Count: 4}}, 1, "bus"))
		if err := law.validate(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for bytes := units.Bytes(1); bytes < 1<<26; bytes *= 2 {
			at := func(n int, l *Law) float64 {
				return float64(l.Seconds(op.AllReduce{Message: op.Message{Group: n, Bytes: bytes}}))
			}
			small, got, large := at(2, around[0].law), at(4, law), at(8, around[1].law)
			if got < min(small, large)*0.98 || got > max(small, large)*1.02 { // straight between knots
				t.Errorf("%s: %v at %v, of the groups around it %v and %v", name, got, bytes, small, large)
			}
		}
	}
}

// A library measured by element type answers for messages without one by its
// 16-bit floats.
func TestOverStandsInByElementType(t *testing.T) {
	g := op.NewGroupType([]op.Member{{Device: "a", Count: 2}}, 1, "bus")
	p := &Profile{Groups: []op.GroupType{g}}
	for _, d := range []op.DType{op.F32, op.F16, op.I8} {
		p.Laws = append(p.Laws, Law{Op: op.KindAllReduce, Variant: op.Variant{DType: d}, Group: g.Name, Curve: line(1, 1), Range: wide(op.KindAllReduce), Spread: tenPercent})
	}
	law, factor, err := NewPredictor(p).Over("bus", op.KindAllReduce, g.Members)
	if err != nil || factor != 1 || law.Variant.DType != op.F16 {
		t.Errorf("%+v, %v, %v", law, factor, err)
	}
}
