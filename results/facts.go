package results

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// memoryTables show what was measured of the devices' memory; nothing where
// nothing was.
func memoryTables(p *printer, all []costmodel.MemoryFacts) {
	if len(all) == 0 {
		return
	}
	t := newTable(column{title: "memory of", most: 24}, column{title: "before the\nfirst tensor", number: true}, column{title: "held after\na warm step", number: true})
	layers := newTable(column{title: "a layer on", most: 24}, column{title: "of widths", most: 44}, column{title: "a token", number: true},
		column{title: "at none", number: true}, column{title: "tokens"}, column{title: "points", number: true})
	for _, m := range all {
		t.row(m.Device, bytesOrNone(m.Capacity), bytesOrNone(m.Reserve))
		for _, l := range m.Layers {
			layers.row(m.Device, fmt.Sprintf("hidden %d, ffn %d, %d+%d heads of %d, %s", l.Hidden, l.FFN, l.QHeads, l.KVHeads, l.HeadDim, l.DType),
				number(l.PerToken)+" B", l.Base.String(), fmt.Sprintf("%s-%s", l.MinTokens, l.MaxTokens), fmt.Sprint(l.Points))
		}
	}
	p.printf("\n")
	t.render(p)
	if len(layers.rows) > 0 {
		p.printf("\n")
		layers.render(p)
		p.para("", "a line through the peaks of one layer, forward and backward; its slope replaces the formula for models of these widths")
	}
}

func bytesOrNone(b units.Bytes) string {
	if b == 0 {
		return none
	}
	return b.String()
}

func overlapTable(p *printer, all []costmodel.OverlapFact) {
	if len(all) == 0 {
		return
	}
	t := newTable(column{title: "at once on", most: 40}, column{title: "computing"}, column{title: "moving"}, column{title: "slowed"},
		column{title: "by", number: true}, column{title: "range", number: true}, column{title: "points", number: true})
	for _, o := range all {
		slowed := string(o.Compute)
		if o.Slowed == op.SlowedComm {
			slowed = string(o.Comm)
		}
		t.row(o.On, string(o.Compute), string(o.Comm), slowed, signed(o.Ratio-1), signed(o.Lo-1)+" .. "+signed(o.Hi-1), fmt.Sprint(o.Points))
	}
	p.printf("\n")
	t.render(p)
	p.para("", "time at once over time alone, median and range over the sizes; plans use those of send_recv: attention takes longer while a ring's messages move, and these longer while it is computed; beside other collectives computing is taken as not slowed")
}

func trainingTable(p *printer, all []costmodel.TrainingFact) {
	if len(all) == 0 {
		return
	}
	ratio := func(r float64) string { return fmt.Sprintf("%.2f", r) }
	t := newTable(column{title: "in training on", most: 40}, column{title: "layers", number: true}, column{title: "loss", number: true}, column{title: "optimizer", number: true},
		column{title: "90 % interval\nof all three", number: true}, column{title: "steps", number: true}, column{title: "from", most: 40})
	for _, f := range all {
		steps, from := fmt.Sprint(f.Steps), f.From.Path
		if f.Assumed != "" {
			steps, from = "-", "assumed: as in "+f.Assumed
		}
		t.row(f.Device, ratio(f.Layers), ratio(f.Loss), ratio(f.Optimizer), "+- "+units.Percent(f.Ratio-1), steps, from)
	}
	p.printf("\n")
	t.render(p)
	p.para("", "how many times as long calls take in whole training steps as measured one by one: in layers, in the cross-entropy of the loss, in the optimizer; plans are predicted with these, the laws and their errors are of calls. The interval is what steps were off by the ratios of the other steps, and of what is assumed by what another device may be off; laws on the device share it")
}

func outlierTable(p *printer, all []costmodel.Outlier) {
	if len(all) == 0 {
		return
	}
	t := newTable(column{title: "outlier", most: 24}, column{title: "rank"}, column{title: "of", most: 40}, column{title: "op"},
		column{title: "against\nits peers", number: true}, column{title: "scale", number: true}, column{title: "points", number: true})
	for _, o := range all {
		t.row(o.Place, orNone(o.Rank), o.On, orNone(string(o.Op)), signed(o.Scale-1), fmt.Sprintf("%.3f", o.Scale), fmt.Sprint(o.Points))
	}
	p.printf("\n")
	t.render(p)
	p.para("", "the laws are those of the first place of each type; the scale turns their times into an outlier's")
}

// PeerCount counts the points of one further place of a device type or group.
type PeerCount struct {
	On     string `json:"on"`
	Place  string `json:"place"`
	Points int    `json:"points"`
	Failed int    `json:"failed"`
}

func (s *RecordingSummary) peer(p *profile.Point) {
	s.Elapsed += units.Seconds(p.Elapsed)
	i := slices.IndexFunc(s.Peers, func(c PeerCount) bool { return c.On == p.On && c.Place == p.Place })
	if i < 0 {
		i = len(s.Peers)
		s.Peers = append(s.Peers, PeerCount{On: p.On, Place: p.Place})
	}
	if p.OK() {
		s.Peers[i].Points++
	} else {
		s.Peers[i].Failed++
	}
}

func peerTable(p *printer, all []PeerCount) {
	if len(all) == 0 {
		return
	}
	t := newTable(column{title: "further place", most: 40}, column{title: "of", most: 40}, column{title: "points", number: true}, column{title: "failed", number: true})
	for _, c := range all {
		t.row(c.Place, c.On, fmt.Sprint(c.Points), fmt.Sprint(c.Failed))
	}
	p.printf("\n")
	t.render(p)
	p.para("", "compared with the first place of their type, never fitted; to see what differs: evenkeel fit")
}

// gaugedTable lists the measured numbers that are no time.
func gaugedTable(p *printer, all []Gauged) {
	if len(all) == 0 {
		return
	}
	t := newTable(column{title: "no time", most: 60}, column{title: "on", most: 40}, column{title: "measured", number: true})
	for _, g := range all {
		value := fmt.Sprintf("%.3f", g.Ratio)
		if g.Size > 0 {
			value = g.Size.String()
		}
		t.row(gaugedTitle(g), g.On, value)
	}
	p.printf("\n")
	t.render(p)
}

// gaugedTitle names an op that has no coordinates by the sizes that matter.
func gaugedTitle(g Gauged) string {
	switch s := g.Shape.(type) {
	case op.MemLayer:
		return fmt.Sprintf("%s tokens=%s hidden=%d ffn=%d", s.Kind(), s.Tokens, s.Hidden, s.FFN)
	case op.OverlapPair:
		return fmt.Sprintf("%s of %s and %s, %s slowed, tokens=%s bytes=%s", s.Kind(), s.Compute, s.Comm, s.Slowed, s.Tokens, s.Bytes)
	}
	return string(g.Shape.Kind())
}
