package costmodel

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Steps predicts a collective in groups of sizes that were never measured, for ranks of
// one device type over one link class. A message of s bytes among n ranks takes
//
//	t = (alpha + per_rank (n-2) + per_byte w s + per_root sqrt(s)) x factor(s/n)
//
// where w s is the bytes on the busiest port. The terms are the latency of the
// transport's steps; the rate of a port; the cost of cutting the message into chunks,
// which grows with the square root of the bytes and does not depend on the group; and
// factor, by which the measured groups deviate from these at a chunk of s/n bytes a rank.
// Steps are fitted together with the laws of the measured groups.
type Steps struct {
	Op      op.Kind      `json:"op"`
	Variant op.Variant   `json:"variant,omitzero"`
	Device  string       `json:"device"` // of every rank
	Link    string       `json:"link"`
	Ranks   []int        `json:"measured_ranks"` // group sizes that were measured, rising
	Alpha   float64      `json:"alpha_s"`        // latency of a group of two
	PerRank float64      `json:"s_per_rank"`     // latency that each further rank adds
	PerByte float64      `json:"s_per_byte"`     // per byte on the busiest port
	PerRoot float64      `json:"s_per_root_byte"`
	Chunks  ChunkFactors `json:"chunks"` // by rising bytes
	// Port bounds the messages, where it is known.
	Port *op.Port `json:"port,omitempty"`
}

// ChunkFactor is the measured time over the time of the steps at a chunk of Bytes per
// rank. Half is half the width of the 90 % interval there, in |log(measured/predicted)|,
// for a group twice as large as the largest measured one.
type ChunkFactor struct {
	Bytes  units.Bytes `json:"chunk_bytes"`
	Factor float64     `json:"factor"`
	Half   float64     `json:"half_width"`
}

// Law derives the law of a group of n ranks, marked as transferred from the measured
// groups. Its interval widens by half its width with every doubling of n beyond twice the
// largest measured group.
func (s *Steps) Law(n int) *Law {
	curve := &Curve{Form: LogLog}
	widen := 1 + max(0, math.Log2(float64(n)/float64(s.Ranks[len(s.Ranks)-1]))-1)/2
	t, widest := 0.0, 0.0
	for i, c := range s.Chunks {
		// The factors run straight in log-log between chunks, the steps do not.
		for at, to := float64(c.Bytes), s.next(i); at < to; at *= math.Sqrt2 {
			factor, half := s.factor(i, at)
			half = min(maxHalfWidth/2, widen*half)
			t = max(t, s.seconds(n, at*float64(n))*factor)
			curve.add(portShare(s.Op, n)*at*float64(n), t, half)
			widest = max(widest, half)
		}
	}
	law := lawOfGroup(s.Op, s.Variant, op.NewGroupType([]op.Member{{Device: s.Device, Count: n}}, 1, s.Link), curve, widest)
	law.Port = s.Port
	first, last := s.Chunks[0].Bytes, s.Chunks[len(s.Chunks)-1].Bytes
	law.Range = []AxisRange{{"bytes", float64(first) * float64(n), float64(last) * float64(n)}}
	law.From = fmt.Sprintf("groups of %s %s", numbers(s.Ranks), s.Device)
	return law
}

// next is where the stretch that begins with chunk i ends; the last one is a point.
func (s *Steps) next(i int) float64 {
	if i+1 < len(s.Chunks) {
		return float64(s.Chunks[i+1].Bytes)
	}
	return float64(s.Chunks[i].Bytes) + 1
}

// factor is the factor and half width at so many bytes a rank, from chunk i on.
func (s *Steps) factor(i int, bytes float64) (factor, half float64) {
	a := s.Chunks[i]
	if i+1 == len(s.Chunks) {
		return a.Factor, a.Half
	}
	b := s.Chunks[i+1]
	w := math.Log(bytes/float64(a.Bytes)) / math.Log(float64(b.Bytes)/float64(a.Bytes))
	return a.Factor * math.Pow(b.Factor/a.Factor, w), a.Half + w*(b.Half-a.Half)
}

// seconds is the time without the factor.
func (s *Steps) seconds(n int, bytes float64) float64 {
	return s.Alpha + s.PerRank*float64(n-2) + s.PerByte*portShare(s.Op, n)*bytes + s.PerRoot*math.Sqrt(bytes)
}

// portShare is what share of a message's bytes crosses the busiest port of n.
func portShare(k op.Kind, n int) float64 {
	const large = 1 << 40 // where the rounding of chunks is nothing
	return float64(op.Volume(op.OfMessage(k, op.Message{Group: n, Bytes: large}))) / large
}

func lawOfGroup(k op.Kind, v op.Variant, g op.GroupType, c *Curve, half float64) *Law {
	return &Law{Op: k, Variant: v, Group: g.Name, Curve: c, Spread: Spread{Lo: math.Exp(-half), Hi: math.Exp(half)}}
}

func numbers(n []int) string {
	var words []string
	for _, x := range n {
		words = append(words, fmt.Sprint(x))
	}
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

// between is the law of a group of n ranks between two measured ones: at equal
// bytes the logarithm of the time runs straight in the logarithm of the ranks.
// What the two differ by widens the interval, most half way. Below the messages that both
// were measured with it follows their curves down to where these stay level.
func between(n int, small, large sized, g op.GroupType) *Law {
	w := math.Log(float64(n)/float64(small.ranks)) / math.Log(float64(large.ranks)/float64(small.ranks))
	lo := max(small.law.Range[0].Min, large.law.Range[0].Min)
	hi := max(lo, min(small.law.Range[0].Max, large.law.Range[0].Max))
	share := portShare(small.law.Op, n)
	curve, t, widest := &Curve{Form: LogLog}, 0.0, leastHalfWidth
	least, first := max(1, min(small.level(), large.level())), lo
	for first >= math.Sqrt2*least {
		first /= math.Sqrt2
	}
	for bytes := first; bytes <= 2*hi; bytes *= math.Sqrt2 {
		a, h := small.at(bytes)
		b, k := large.at(bytes)
		half := min(maxHalfWidth/2, max(h, k, leastHalfWidth)+w*(1-w)*math.Abs(a-b))
		t = max(t, math.Exp(a+w*(b-a)))
		curve.add(share*bytes, t, half)
		widest = max(widest, half)
	}
	law := lawOfGroup(small.law.Op, small.law.Variant, g, curve, widest)
	law.Range = []AxisRange{{"bytes", lo, hi}}
	law.From = small.law.Group + " and " + large.law.Group
	if a, b := small.law.Port, large.law.Port; a != nil && b != nil {
		port := a.Or(*b)
		law.Port = &port
	}
	return law
}

// at is the logarithm of the time of so many bytes and half the width of its
// interval.
func (s sized) at(bytes float64) (log, half float64) {
	e := s.law.Predict(op.OfMessage(s.law.Op, op.Message{Group: s.ranks, Bytes: units.Bytes(bytes), DType: s.law.Variant.DType}))
	return math.Log(float64(e.Mid)), math.Log(float64(e.Hi) / float64(e.Mid))
}

// level is the bytes of a message below which the time no longer falls.
func (s sized) level() float64 {
	if c := s.law.Curve; len(c.Knots) > 0 {
		return float64(c.Knots[0].Bytes) / portShare(s.law.Op, s.ranks)
	}
	return 1
}

// add appends a knot where it lies beyond the last.
func (c *Curve) add(bytes, seconds, half float64) {
	at := units.Bytes(math.Round(bytes))
	if n := len(c.Knots); at < 1 || n > 0 && at <= c.Knots[n-1].Bytes {
		return
	}
	c.Knots = append(c.Knots, Knot{Bytes: at, Seconds: units.Seconds(seconds)})
	c.HalfWidths = append(c.HalfWidths, half)
}

// leastHalfWidth keeps an interval from being empty.
const leastHalfWidth = 1e-3

// validateSteps reports the first list of steps that no law can be made of.
func (p *Profile) validateSteps(known map[string]bool) error {
	type key struct {
		op           op.Kind
		variant      op.Variant
		device, link string
	}
	seen := map[key]bool{}
	for i := range p.Steps {
		s := &p.Steps[i]
		if err := s.validate(); err != nil {
			return fmt.Errorf("steps[%d].%w", i, err)
		}
		if !known[s.Device] {
			return fmt.Errorf("steps[%d].device: %q is no device of this profile", i, s.Device)
		}
		k := key{s.Op, s.Variant, s.Device, s.Link}
		if seen[k] {
			return fmt.Errorf("steps[%d]: second steps of %s among %s over %s", i, named(s.Op, s.Variant), s.Device, s.Link)
		}
		seen[k] = true
	}
	return nil
}

func (s *Steps) validate() error {
	if !slices.Contains(messageOps(), s.Op) {
		return fmt.Errorf("op: %q: steps are of %v", string(s.Op), messageOps())
	}
	if s.Link == "" {
		return fmt.Errorf("link: missing")
	}
	for i, n := range s.Ranks {
		if n < 2 || i > 0 && n <= s.Ranks[i-1] {
			return fmt.Errorf("measured_ranks[%d]: %d: want rising numbers from 2 on", i, n)
		}
	}
	if len(s.Ranks) == 0 || len(s.Chunks) == 0 {
		return fmt.Errorf("measured_ranks, chunks: want at least one of each")
	}
	for _, c := range []struct {
		name  string
		value float64
	}{{"alpha_s", s.Alpha}, {"s_per_byte", s.PerByte}} {
		if !(c.value > 0) || math.IsInf(c.value, 0) {
			return fmt.Errorf("%s: %v: must be positive", c.name, c.value)
		}
	}
	if !(s.PerRank >= 0 && s.PerRoot >= 0) || math.IsInf(s.PerRank+s.PerRoot, 0) {
		return fmt.Errorf("s_per_rank, s_per_root_byte: %v, %v: must not be negative", s.PerRank, s.PerRoot)
	}
	if err := validatePort(s.Port, true); err != nil {
		return err
	}
	return s.validateChunks()
}

func (s *Steps) validateChunks() error {
	for i, c := range s.Chunks {
		switch {
		case c.Bytes < 1 || c.Bytes > 1<<50 || i > 0 && c.Bytes <= s.Chunks[i-1].Bytes:
			return fmt.Errorf("chunks.chunk_bytes[%d]: %d: must rise from 1 on", i, int64(c.Bytes))
		case !(c.Factor > 0 && c.Factor < 1e3):
			return fmt.Errorf("chunks.factors[%d]: %v: want above 0 and below 1000", i, c.Factor)
		case !(c.Half > 0 && c.Half < maxHalfWidth):
			return fmt.Errorf("chunks.half_widths[%d]: %v: want above 0 and below %d", i, c.Half, maxHalfWidth)
		}
	}
	return nil
}

// messageOps are the collectives of one message among the ranks of a group.
func messageOps() []op.Kind {
	return []op.Kind{op.KindAllReduce, op.KindAllGather, op.KindReduceScatter, op.KindAllToAll, op.KindSendRecv}
}

// groupOfOne is the device type that all members are of, or "" where they differ.
func groupOfOne(members []op.Member) (device string, ranks int) {
	for i, m := range members {
		ranks += m.Count
		if i > 0 && m.Device != members[0].Device {
			return "", 0
		}
	}
	if len(members) == 0 {
		return "", 0
	}
	return members[0].Device, ranks
}

// sized is a measured group with the law of a collective.
type sized struct {
	ranks int
	law   *Law
}

// unmeasured predicts a group of one device type that was not measured, from
// the laws of smaller and larger groups of it on the same link class, or beyond
// them by its steps; nil where there are neither. A law is made once.
func (q *Predictor) unmeasured(link string, kind op.Kind, v op.Variant, members []op.Member) *Law {
	device, n := groupOfOne(members)
	if device == "" || n < 2 || !slices.Contains(messageOps(), kind) {
		return nil
	}
	key := madeOf{wireOf{link, kind}, v, device, n}
	if l, ok := q.made.Load(key); ok {
		return l.(*Law)
	}
	l := q.makeLaw(key, members)
	if l == nil {
		return nil
	}
	made, _ := q.made.LoadOrStore(key, l)
	return made.(*Law)
}

// madeOf says what a law of an unmeasured group is of.
type madeOf struct {
	wireOf
	variant op.Variant
	device  string
	ranks   int
}

func (q *Predictor) makeLaw(of madeOf, members []op.Member) *Law {
	around := q.measured(of.link, of.kind, of.variant, of.device)
	at := sort.Search(len(around), func(i int) bool { return around[i].ranks >= of.ranks })
	if at > 0 && at < len(around) {
		return between(of.ranks, around[at-1], around[at], op.NewGroupType(members, 1, of.link))
	}
	for i := range q.steps {
		if s := &q.steps[i]; s.Op == of.kind && s.Variant == of.variant && s.Device == of.device && s.Link == of.link {
			return s.Law(of.ranks)
		}
	}
	return nil
}

// measured lists the measured groups of a device type on a link class, on one
// node, by rising size.
func (q *Predictor) measured(link string, kind op.Kind, v op.Variant, device string) []sized {
	var all []sized
	for _, w := range q.wired[wireLaw{wireOf{link, kind}, v}] {
		if of, ranks := groupOfOne(w.group.Members); w.group.Nodes == 1 && of == device {
			all = append(all, sized{ranks, w.law})
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].ranks < all[j].ranks })
	return all
}
