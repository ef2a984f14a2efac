package costmodel

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

const statedYAML = `schema: evenkeel.cluster/v1
network: roce
links:
  - {name: nvlink_a800, bytes_per_s: 200e9, latency_s: 3e-6}
  - {name: roce, bytes_per_s: 25000000000}
nodes:
  - name: a
    link: nvlink_a800
    nics: 2
    devices: [{device: a800, count: 4}]
  - name: b
    link: nvlink
    devices: [{device: h100, count: 8}]
`

func TestStatedLinks(t *testing.T) {
	c, err := ReadClusterYAML("c.yaml", []byte(statedYAML))
	if err != nil {
		t.Fatal(err)
	}
	want := []Link{{"nvlink_a800", 200e9, 3e-6}, {"roce", 25e9, 0}}
	if diff := cmp.Diff(want, c.Links); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	swap := func(old, new string) string { return strings.Replace(statedYAML, old, new, 1) }
	for name, bad := range map[string]struct{ data, want string }{
		"gigabytes":    {swap("200e9", "200"), "links[0].bytes_per_s: 200 of nvlink_a800: want 1e+06 to 1e+14; 200 GB/s are 200e9"},
		"microseconds": {swap("3e-6", "3"), "links[0].latency_s: 3 of nvlink_a800: want 0 to 0.1; 3 microseconds are 3e-6"},
		"negative":     {swap("200e9", "-200e9"), "links[0].bytes_per_s: -2e+11"},
		"no rate":      {swap(", bytes_per_s: 200e9", ""), "links[0].bytes_per_s: 0"},
		"nan":          {swap("200e9", ".nan"), "c.yaml:4: links[0].bytes_per_s: .nan: want a number, such as 200e9"},
		"infinite":     {swap("200e9", ".inf"), "c.yaml:4: links[0].bytes_per_s: .inf: want a number"},
		"too large":    {swap("200e9", "1e308"), "links[0].bytes_per_s: 1e+308"},
		"overflow":     {swap("200e9", "1e999"), `c.yaml:4: links[0].bytes_per_s: "1e999": want a number`},
		"words":        {swap("200e9", "fast"), `c.yaml:4: links[0].bytes_per_s: "fast": want a number`},
		"nameless":     {swap("name: nvlink_a800, ", ""), "links[0].name:"},
		"other unit":   {swap("bytes_per_s", "gb_per_s"), `c.yaml:4: links[0]: unknown key "gb_per_s"; the keys there are name, bytes_per_s, latency_s`},
		"contradiction": {
			swap("name: roce, bytes", "name: nvlink_a800, bytes"),
			`links[1].name: "nvlink_a800" is stated twice, at 2e+11 and 2.5e+10 bytes/s`,
		},
		"repetition":   {swap("  - {name: roce,", "  - {name: nvlink_a800, bytes_per_s: 200e9, latency_s: 3e-6}\n  - {name: roce,"), "is stated twice; keep one entry"},
		"alias":        {swap("200e9", "&x 200e9"), "anchors, aliases and tags"},
		"no list":      {swap("links:\n  - {name: nvlink_a800, bytes_per_s: 200e9, latency_s: 3e-6}\n  - {name: roce, bytes_per_s: 25000000000}", "links: 2.5"), "c.yaml:3: links: 2.5: want a list of keys with values"},
		"float beside": {swap("nics: 2", "nics: 2.5"), "c.yaml:9: nodes[0].nics: 2.5: want the number"},
		"many":         {swap("links:\n", "links:\n"+strings.Repeat("  - {name: x, bytes_per_s: 1e9}\n", 2000)), "links: 2002: want at most 1024"},
	} {
		if _, err := ReadClusterYAML("c.yaml", []byte(bad.data)); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want %q", name, err, bad.want)
		}
	}
}

// What is written reads back, whatever the names and comments.
func TestClusterYAMLReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.OneOf(rapid.SampledFrom([]string{"yes", "null", "~", "12", "1e9", "a:b", "a#b", "-", "?x", "h100/nccl-2.3", "'", `\"`, "{", "[x]", "&a", "*a", "!t", "ü"}),
			rapid.StringMatching(`[a-z0-9_/:.#{}\[\],&*!|>'"%@\x60-]{1,12}`))
		device := word.Filter(func(s string) bool { return !strings.ContainsAny(s, "+()") })
		var c Cluster
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			n := Node{Name: word.Draw(t, "name"), Link: word.Draw(t, "link"), Devices: []op.Member{{Device: device.Draw(t, "device"), Count: rapid.IntRange(1, 9).Draw(t, "count")}}}
			n.Name += strings.Repeat("x", i+1)
			n.NICs = rapid.IntRange(0, n.Size()).Draw(t, "nics")
			c.Nodes = append(c.Nodes, n)
		}
		c.Network = rapid.OneOf(rapid.Just(""), word).Draw(t, "network")
		for i := range rapid.IntRange(0, 3).Draw(t, "links") {
			c.Links = append(c.Links, Link{word.Draw(t, "class") + strings.Repeat("y", i+1), units.BytesPerS(rapid.Float64Range(1e6, 1e14).Draw(t, "rate")), units.Seconds(rapid.Float64Range(0, 0.1).Draw(t, "latency"))})
		}
		if c.Validate() != nil {
			t.Skip("two names alike")
		}
		remark := rapid.String().Draw(t, "remark")
		data := c.YAML(ClusterRemarks{Head: []string{remark}, Network: remark, Link: remark, NICs: remark, Devices: remark, Foot: []string{remark}})
		again, err := ReadClusterYAML("c.yaml", data)
		if err != nil || !cmp.Equal(c, again, cmpopts.EquateEmpty()) {
			t.Fatalf("%v (-want +got)\n%s\n%s", err, cmp.Diff(c, again), data)
		}
	})
}

// measuredLine is a measured law of one latency and one rate.
func measuredLine(k op.Kind, g op.GroupType, rate float64) Law {
	l := AssumedWire{Class: g.Link, Members: g.Members, Nodes: g.Nodes, One: units.BytesPerS(rate / wireShare), All: units.BytesPerS(rate / wireShare)}
	_, all := l.Laws()
	law := all[slices.IndexFunc(all, func(l Law) bool { return l.Op == k })]
	law.Assumed, law.Spread = "", Spread{0.9, 1.1}
	return law
}

// known is a profile with an h100, whose send_recv over nvlink was measured, and
// an a800, of which only the datasheet is known.
func known() *Profile {
	g := op.NewGroupType([]op.Member{{Device: "h100/nccl", Count: 8}}, 1, "nvlink")
	return &Profile{
		Devices: []op.DeviceType{
			{Name: "h100", Fingerprint: "0", Parallel: 1, Sheet: op.Sheet{LinkPerS: 450e9, NetPerS: 50e9, HostPerS: 64e9}},
			{Name: "a800", Fingerprint: "0", Parallel: 1, Sheet: op.Sheet{LinkPerS: 200e9, NetPerS: 25e9, HostPerS: 32e9}},
		},
		Groups: []op.GroupType{g},
		Laws:   []Law{measuredLine(op.KindSendRecv, g, 350e9)},
	}
}

func TestAssumeLinks(t *testing.T) {
	c, err := ReadClusterYAML("c.yaml", []byte(statedYAML))
	if err != nil {
		t.Fatal(err)
	}
	p := known()
	before := known()
	if c, err = c.Resolve(p, "", ""); err != nil {
		t.Fatal(err)
	}
	got := AssumeLinks(p, c)
	if err := got.Validate(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, p); diff != "" {
		t.Errorf("the profile given was changed: %s", diff)
	}
	if again := AssumeLinks(got, c); len(again.Laws) != len(got.Laws) || len(again.Groups) != len(got.Groups) {
		t.Errorf("a second time: %d laws, were %d", len(again.Laws), len(got.Laws))
	}
	q := NewPredictor(got)
	const big = 1 << 30
	for _, k := range StepCollectives() {
		for _, x := range []struct {
			class   string
			members []op.Member
			factor  float64
		}{
			{"nvlink_a800", []op.Member{{Device: "a800", Count: 4}}, 1},
			{"nvlink_a800", []op.Member{{Device: "a800", Count: 3}}, 1},
			{"roce", []op.Member{{Device: "a800", Count: 4}, {Device: "h100", Count: 8}}, 1},
		} {
			l, factor, err := q.Over(x.class, k, x.members)
			if err != nil || factor != x.factor || l.Assumed == "" || !strings.Contains(l.Assumed, "the cluster states") {
				t.Errorf("%s of %v over %s: %v, %v, %v", k, x.members, x.class, l, factor, err)
				continue
			}
			if k == op.KindAllToAllV {
				continue // of no single message
			}
			s := op.OfMessage(k, op.Message{Group: op.GroupType{Members: x.members}.Ranks(), Bytes: big})
			if e := l.Predict(s); e.Source != Assumed || e.Hi < 2*e.Mid || e.Lo > max(e.Mid/2, l.least(s)) {
				t.Errorf("%s over %s: %+v, want a wide interval called assumed", k, x.class, e)
			}
			// A port of a node sends no faster than is stated; between nodes there is more than cards.
			if inside := x.class == "nvlink_a800"; inside != (l.Port != nil) || inside && l.Port.PerS != 200e9 {
				t.Errorf("%s over %s: bound by %+v", k, x.class, l.Port)
			}
		}
	}
	// One port moves 80 % of the stated rate after one latency.
	l, _, _ := q.Over("nvlink_a800", op.KindSendRecv, []op.Member{{Device: "a800", Count: 4}})
	if got, want := float64(l.Predict(op.SendRecv{Message: op.Message{Group: 4, Bytes: big}}).Mid), 3e-6+big/(0.8*200e9); math.Abs(got/want-1) > 1e-12 {
		t.Errorf("send_recv takes %v s, want %v", got, want)
	}
	// Two cards serve the four a800 of node a: a ring through both nodes gets 50 GB/s.
	l, _, _ = q.Over("roce", op.KindAllGather, []op.Member{{Device: "a800", Count: 4}, {Device: "h100", Count: 8}})
	if got, want := 1/l.Curve.Pieces[0].Beta.Value, 0.8*50e9; math.Abs(got/want-1) > 1e-12 {
		t.Errorf("all_gather between nodes at %v B/s, want %v", got, want)
	}
}

// What the profile has laws of stays as it is, and only that.
func TestMeasuredLinksWin(t *testing.T) {
	p := known()
	c := Cluster{
		Links: []Link{{"nvlink", 100e9, 0}, {"unused", 100e9, 0}},
		Nodes: []Node{
			{Name: "a", Link: "nvlink", Devices: []op.Member{{Device: "h100", Count: 8}}},
			{Name: "b", Link: "nvlink", Devices: []op.Member{{Device: "a800", Count: 8}}},
			{Name: "c", Devices: []op.Member{{Device: "a800", Count: 1}}},
		},
	}
	got := AssumeLinks(p, c)
	q := NewPredictor(got)
	for _, x := range []struct {
		device  string
		k       op.Kind
		assumed bool
	}{{"h100", op.KindSendRecv, false}, {"h100", op.KindAllGather, true}, {"a800", op.KindSendRecv, true}} {
		l, _, err := q.Over("nvlink", x.k, []op.Member{{Device: x.device, Count: 8}})
		if err != nil || (l.Assumed != "") != x.assumed {
			t.Errorf("%s on %s: %+v, %v; assumed should be %v", x.k, x.device, l, err, x.assumed)
		}
	}
	if slices.ContainsFunc(got.Groups, func(g op.GroupType) bool { return g.Link == "unused" || g.Ranks() < 2 }) {
		t.Errorf("groups that nobody asked for: %+v", got.Groups)
	}
}

// A large node gets laws of itself alone, so that a rack costs no thousands.
func TestAssumeLinksOfALargeNode(t *testing.T) {
	c := Cluster{Links: []Link{{"mesh", 100e9, 0}}, Nodes: []Node{{Name: "a", Link: "mesh", Devices: []op.Member{{Device: "h100", Count: MaxRanks}}}}}
	if got := AssumeLinks(known(), c); len(got.Groups) != 2 || len(got.Laws) != 1+len(StepCollectives()) {
		t.Errorf("%d groups, %d laws", len(got.Groups), len(got.Laws))
	}
}

// Names are settled and explained with the classes that the cluster states.
func TestResolveStatedLinks(t *testing.T) {
	c, err := ReadClusterYAML("c.yaml", []byte(statedYAML))
	if err != nil {
		t.Fatal(err)
	}
	open := c
	open.Nodes = []Node{{Name: "a", Devices: c.Nodes[0].Devices}}
	if got, err := open.Resolve(known(), "", ""); err != nil || got.Nodes[0].Link != "nvlink" || len(got.Links) != 2 {
		t.Errorf("the only measured class: %+v, %v", got, err)
	}
	if got, err := open.Resolve(known(), "nvlink_a800", ""); err != nil || got.Nodes[0].Link != "nvlink_a800" {
		t.Errorf("--link names a stated class: %+v, %v", got, err)
	}
	bare := known()
	bare.Groups, bare.Laws = nil, nil
	silent := known()
	silent.Groups, silent.Laws = nil, nil
	for i := range silent.Devices {
		silent.Devices[i].Sheet = op.Sheet{}
	}
	alone := open
	alone.Links = nil
	with := func(change func(*Cluster)) Cluster {
		x := c
		x.Nodes = slices.Clone(c.Nodes)
		change(&x)
		return x
	}
	for name, x := range map[string]struct {
		cluster Cluster
		p       *Profile
		want    []string
	}{
		"slip of a stated class": {with(func(x *Cluster) { x.Nodes[0].Link = "nvlink_a80" }), known(), []string{`link class "nvlink_a80" is not in the profile (did you mean "nvlink_a800"?); it has nvlink, nvlink_a800, roce`}},
		"slip of a network":      {with(func(x *Cluster) { x.Network = "roec" }), known(), []string{`did you mean "roce"?`}},
		"network of no law":      {with(func(x *Cluster) { x.Network = "infiniband" }), known(), []string{"which counts as assumed: --network infiniband=25GB/s, or add {name: infiniband, bytes_per_s: 2.5e+10} to the links of the cluster file"}},
		"bus beside nvlink":      {with(func(x *Cluster) { x.Nodes[1].Link = "pcie" }), known(), []string{"node b: link class", "add {name: pcie, bytes_per_s: 6.4e+10} to the links of the cluster file"}},
		"nothing measured":       {alone, bare, []string{"evenkeel calibrate --fresh --only send_recv", "which counts as assumed: --link link=200GB/s, or add links: [{name: link, bytes_per_s: 2e+11}] to the cluster file"}},
		"no datasheet's rate":    {alone, silent, []string{"; or plan with a rate that you state, which counts as assumed, such as --link link=25GB/s"}},
		"rate for a network":     {with(func(x *Cluster) { x.Network = "200Gbps" }), known(), []string{`"200Gbps" is a rate, and no name of a link class`, "give it a name: --network net=200Gb/s, or in the links of the cluster file {name: net, bytes_per_s: 2.5e+10}"}},
		"rate for a bus":         {with(func(x *Cluster) { x.Nodes[1].Link = "26GB/s" }), bare, []string{"node b: \"26GB/s\" is a rate", "give it a name: --link bus=26GB/s,"}},
		"open, two stated":       {open, bare, []string{"the profile and the cluster's links have the classes nvlink_a800, roce; choose with --link"}},
		"slip of a device":       {with(func(x *Cluster) { x.Nodes = []Node{node("n", op.Member{Device: "h10", Count: 1})} }), known(), []string{`"h10" of node n is not in the profile (did you mean "h100"?)`}},
	} {
		_, err := x.cluster.Resolve(x.p, "", "")
		for _, want := range x.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
}

// A slip in a model is found where profiles know it with its software only.
func TestNearestModelBeforeTheSlash(t *testing.T) {
	p := &Profile{Devices: []op.DeviceType{{Name: "h100_sxm/vllm-0.24.0"}, {Name: "a100_sxm/nccl-2.27"}}}
	for name, want := range map[string]string{
		"h100_smx":             `did you mean "h100_sxm"?`,
		"h100_sxm/vllm-0.24":   `did you mean "h100_sxm/vllm-0.24.0"?`,
		"a100_sxm/nccl-2.28":   `did you mean "a100_sxm/nccl-2.27"?`,
		"something_else/stack": "it has h100_sxm/vllm-0.24.0, a100_sxm/nccl-2.27",
	} {
		if _, err := p.DeviceFor(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// A plan may leave kinds of nodes out, so every choice of them has laws of the
// network, at the rate of its own slowest node.
func TestStatedNetworkOfEveryChoiceOfNodes(t *testing.T) {
	p := usual(t)
	c := Cluster{
		Network: "net", Links: []Link{{Name: "net", Rate: 1e10}, {Name: "narrow", Rate: 2e9}, {Name: "wide", Rate: 4e10}},
		Nodes: []Node{
			{Name: "a", Link: "wide", Devices: []op.Member{{Device: "fast", Count: 4}}},
			{Name: "b", Link: "wide", Devices: []op.Member{{Device: "fast", Count: 4}}},
			{Name: "c", Link: "narrow", Devices: []op.Member{{Device: "slow", Count: 4}}},
		},
	}
	q := NewPredictor(AssumeLinks(p, c))
	gather := func(members ...op.Member) float64 {
		l, _, err := q.Over("net", op.KindAllGather, members)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, m := range members {
			n += m.Count
		}
		return float64(l.Seconds(op.OfMessage(op.KindAllGather, op.Message{Group: n, Bytes: 1 << 30})))
	}
	alone, all := gather(op.Member{Device: "fast", Count: 8}), gather(op.Member{Device: "fast", Count: 8}, op.Member{Device: "slow", Count: 4})
	// Four cards a node at 10 GB/s, or where the links inside are narrower a card
	// a device.
	if ratio := all / alone; ratio < 3.5 || ratio > 4.5 {
		t.Errorf("beside a node of narrow links a gather takes %.1f times as long as without it: want about 4", ratio)
	}
	if n := len(choices(9)); n != 10 {
		t.Errorf("%d choices of nine kinds: want all and each alone", n)
	}
	if n := len(choices(3)); n != 7 {
		t.Errorf("%d choices of three kinds: want all seven", n)
	}
}

// A ring leaves a node through all its cards, and what that is said to rest on is the rate of one
// that the cluster states, and how many there are.
func TestStatedCardsAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		nics, devices int
		inside        units.BytesPerS // 0: as the profile has it
		want          string
	}{
		"left out": {0, 8, 1e12, "80 % of the rate that the cluster states of 8 cards a node, 25 GB/s each, one a device since nics says no fewer (200 GB/s)"},
		"stated":   {4, 8, 1e12, "80 % of the rate that the cluster states of 4 cards a node, 25 GB/s each (100 GB/s)"},
		"one":      {1, 8, 1e12, "80 % of the rate that the cluster states (25 GB/s)"},
		"alone":    {0, 1, 0, "80 % of the rate that the cluster states (25 GB/s)"},
		"narrow":   {0, 8, 1e11, "80 % of what the links inside a node carry of the rate that the cluster states of its 8 cards (100 GB/s)"},
	} {
		node := Node{Name: "a", Link: "bus", NICs: c.nics, Devices: []op.Member{{Device: "x", Count: c.devices}}}
		cluster := Cluster{Nodes: []Node{node, node}, Network: "ib", Links: []Link{{Name: "ib", Rate: 25e9}}}
		if c.inside > 0 {
			cluster.Links = append(cluster.Links, Link{Name: "bus", Rate: c.inside})
		}
		p, rings := AssumeLinks(&Profile{}, cluster), 0
		for _, l := range p.Laws {
			if !strings.Contains(l.Group, "over ib") {
				continue
			}
			rings++
			want := c.want
			if l.Op == op.KindSendRecv || l.Op == op.KindAllToAll || l.Op == op.KindAllToAllV { // through a card each
				want = "80 % of the rate that the cluster states (25 GB/s)"
			}
			if !strings.Contains(l.Assumed, want) {
				t.Errorf("%s: %s: %q, want %q", name, l.Op, l.Assumed, want)
			}
		}
		if said := cluster.Unheeded(p); len(said) > 0 || rings < len(StepCollectives()) {
			t.Errorf("%s: %d laws, %q", name, rings, said)
		}
	}
}
