package fit

import (
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// overLink is a profile of collectives alone, in float32 among 16 devices of some models over
// a link class; measured on one node where nodes is 1.
func overLink(link string, nodes int, kinds []op.Kind, models ...string) *costmodel.Profile {
	p := &costmodel.Profile{}
	var members []op.Member
	for _, m := range models {
		p.Devices = append(p.Devices, op.DeviceType{Name: m + "/nccl", Fingerprint: "00", Parallel: 100, Memory: 80 << 30, Sheet: sheet()})
		members = append(members, op.Member{Device: m + "/nccl", Count: 16 / len(models)})
	}
	g := op.NewGroupType(members, nodes, link)
	p.Groups = []op.GroupType{g}
	for _, k := range kinds {
		p.Laws = append(p.Laws, costmodel.Law{
			Op: k, Variant: op.Variant{DType: op.F32}, Group: g.Name, Curve: sheetLine(2e-5, 1e11),
			Range: []costmodel.AxisRange{{Axis: "bytes", Min: 512, Max: 1 << 29}}, Spread: costmodel.Spread{Lo: 0.9, Hi: 1.1},
		})
	}
	return p
}

// beside is what the engines of GPU models plan with who measured such links.
func beside(own *costmodel.Profile, models ...string) *costmodel.Profile {
	p := measuredOnly(models...)
	p.Devices, p.Groups, p.Laws = append(p.Devices, own.Devices...), append(p.Groups, own.Groups...), append(p.Laws, own.Laws...)
	return p
}

func named(t *testing.T, p *costmodel.Profile, text string) costmodel.Cluster {
	t.Helper()
	c, err := costmodel.ParseCluster(text)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = c.Named(p); err != nil {
		t.Fatal(err)
	}
	return c
}

// askNetwork is the law of a collective over a cluster's network, after a profile stood up.
func askNetwork(t *testing.T, p *costmodel.Profile, c costmodel.Cluster, k op.Kind, members ...op.Member) costmodel.Law {
	t.Helper()
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	l, _, err := costmodel.NewCallPredictor(p).Over(c.Network, k, members)
	if err != nil {
		t.Fatal(err)
	}
	return *l
}

// What its user measured between nodes is the network, named or not, and what was not
// measured of it is assumed. A reduce_scatter is as long as an all_reduce.
func TestMeasuredNetworkIsTheNetwork(t *testing.T) {
	for _, network := range []string{"", "ib"} {
		own := overLink("ib", 2, []op.Kind{op.KindAllReduce}, "gpu")
		p := beside(own, "gpu")
		c := named(t, p, "2x8 gpu/engine")
		c.Network = network
		c, err := AssumeLinks(p, own, c)
		if err != nil || c.Network != "ib" || c.Nodes[0].Link != "nvlink" {
			t.Fatalf("network %q: %+v, %v", network, c, err)
		}
		for k, measured := range map[op.Kind]bool{
			op.KindAllReduce: true, op.KindReduceScatter: true,
			op.KindAllGather: false, op.KindAllToAll: false, op.KindSendRecv: false,
		} {
			for _, n := range []int{4, 16} {
				l := askNetwork(t, p, c, k, op.Member{Device: "gpu/engine", Count: n})
				if (l.Assumed == "") != measured || !strings.Contains(l.Group, "over ib") {
					t.Errorf("network %q: %s of %d: law of %s, assumed %q", network, k, n, l.Group, l.Assumed)
				}
			}
		}
	}
}

// Where the cluster states its rate, that is what the rest is assumed by, and where nobody
// measured between nodes of its devices, nothing of one's own is the network.
func TestNetworksThatOwnLawsLeaveAlone(t *testing.T) {
	all := []op.Kind{op.KindAllReduce}
	for name, x := range map[string]struct {
		own  *costmodel.Profile
		c    costmodel.Cluster
		want string
		laws int // that are assumed between nodes
	}{
		"stated":       {overLink("ib", 2, all, "gpu"), costmodel.Cluster{Network: "ib", Links: []costmodel.Link{{Name: "ib", Rate: 1e10}}}, "ib", 0},
		"within nodes": {overLink("ib", 1, all, "gpu"), costmodel.Cluster{}, NetworkLink, len(costmodel.StepCollectives())},
		"of others":    {overLink("ib", 2, all, "other"), costmodel.Cluster{}, NetworkLink, len(costmodel.StepCollectives())},
		"none":         {&costmodel.Profile{}, costmodel.Cluster{}, NetworkLink, len(costmodel.StepCollectives())},
	} {
		p := beside(x.own, "gpu")
		x.c.Nodes = named(t, p, "2x8 gpu/engine").Nodes
		c, err := AssumeLinks(p, x.own, x.c)
		if err != nil || c.Network != x.want {
			t.Errorf("%s: network %q, %v; want %s", name, c.Network, err, x.want)
		}
		got := slices.DeleteFunc(slices.Clone(p.Laws), func(l costmodel.Law) bool { return l.Assumed == "" || !strings.Contains(l.Group, "on 2 nodes") })
		if len(got) != x.laws {
			t.Errorf("%s: %d laws are assumed, want %d", name, len(got), x.laws)
		}
	}
}

// Among several link classes nothing decides but the flag, or a group of all GPU models.
func TestMeasuredNetworksToChooseFrom(t *testing.T) {
	all := []op.Kind{op.KindAllReduce}
	own := overLink("ib", 2, all, "a")
	eth := overLink("eth", 2, all, "b")
	own.Devices, own.Groups, own.Laws = append(own.Devices, eth.Devices...), append(own.Groups, eth.Groups...), append(own.Laws, eth.Laws...)
	p := beside(own, "a", "b")
	c := named(t, p, "1x8 a/engine + 1x8 b/engine")
	if _, err := AssumeLinks(p, own, c); err == nil || err.Error() != "the profile has collectives between nodes over the link classes eth, ib; choose with --network" {
		t.Errorf("error %v", err)
	}
	if c, err := AssumeLinks(p, own, named(t, p, "2x8 a/engine")); err != nil || c.Network != "ib" {
		t.Errorf("of one: %q, %v", c.Network, err)
	}
	both := overLink("opa", 2, all, "a", "b")
	own.Groups, own.Laws = append(own.Groups, both.Groups...), append(own.Laws, both.Laws...)
	p = beside(own, "a", "b")
	if c, err := AssumeLinks(p, own, c); err != nil || c.Network != "opa" {
		t.Errorf("of both: %q, %v", c.Network, err)
	}
}

// A group with a GPU model of which a collective was not measured may be slower than one
// without: it has a law of its own, which takes no other group's place. One of which it was
// measured among more models goes as these do.
func TestMeasuredNetworkOfSomeModels(t *testing.T) {
	of := func(model string, n int) op.Member { return op.Member{Device: model + "/engine", Count: n} }
	own := overLink("ib", 2, []op.Kind{op.KindAllReduce}, "a")
	p := beside(own, "a", "b")
	eachSheet(p, func(model string, s *op.Sheet) {
		if model == "b" {
			s.NetPerS = 1e9
		}
	})
	c, err := AssumeLinks(p, own, named(t, p, "2x8 a/engine + 2x8 b/engine"))
	if err != nil || c.Network != "ib" {
		t.Fatal(c.Network, err)
	}
	for _, x := range []struct {
		members []op.Member
		assumed bool
	}{
		{[]op.Member{of("a", 16)}, false},
		{[]op.Member{of("a", 4)}, false},
		{[]op.Member{of("b", 16)}, true},
		{[]op.Member{of("a", 16), of("b", 16)}, true},
		{[]op.Member{of("a", 8), of("b", 8)}, true},
	} {
		if l := askNetwork(t, p, c, op.KindAllReduce, x.members...); (l.Assumed != "") != x.assumed {
			t.Errorf("%v: law of %s, assumed %q", x.members, l.Group, l.Assumed)
		}
	}
	own = overLink("ib", 2, []op.Kind{op.KindAllReduce}, "a", "b")
	p = beside(own, "a", "b")
	if c, err = AssumeLinks(p, own, named(t, p, "2x8 a/engine + 2x8 b/engine")); err != nil {
		t.Fatal(err)
	}
	if l := askNetwork(t, p, c, op.KindAllReduce, of("a", 16)); l.Assumed != "" {
		t.Errorf("of one among both: %q", l.Assumed)
	}
}

// Where datasheets are silent, the only class of one's own stands for an open link, as it does
// without references: among unlike devices of a node, and between nodes.
func TestOnlyLinkClassStandsForOpenOnes(t *testing.T) {
	silent := func(_ string, s *op.Sheet) { *s = op.Sheet{} }
	all := costmodel.StepCollectives()
	for _, cluster := range []string{"1x(1 a/engine + 1 b/engine)", "1x2 b/engine", "2x1 a/engine", "2x2 b/engine"} {
		own := measuredOnly("a", "b")
		own.Groups = nil
		own.Laws = slices.DeleteFunc(own.Laws, func(l costmodel.Law) bool { return l.Group != "" })
		wire := overLink("socket", 1, all, "a")
		own.Groups, own.Laws, own.Devices = wire.Groups, append(own.Laws, wire.Laws...), append(own.Devices, wire.Devices...)
		eachSheet(own, silent)
		p := *own
		c, err := AssumeLinks(&p, own, named(t, own, cluster))
		if err != nil {
			t.Errorf("%s: %v", cluster, err)
			continue
		}
		plain, err := named(t, own, cluster).Resolve(own, "", "")
		if err != nil {
			t.Fatal(err)
		}
		if c.Network != plain.Network || c.Nodes[0].Link != plain.Nodes[0].Link || len(p.Laws) != len(own.Laws) {
			t.Errorf("%s: links %q, network %q, %d more laws; without references %q and %q", cluster, c.Nodes[0].Link, c.Network, len(p.Laws)-len(own.Laws), plain.Nodes[0].Link, plain.Network)
		}
	}
}

// It does not for devices that it does not know, nor is one of several taken: the error names
// them with the flag.
func TestSeveralLinkClassesAreNamed(t *testing.T) {
	for name, x := range map[string]struct {
		more *costmodel.Profile
		want string
	}{
		"others'": {&costmodel.Profile{}, "(socket) with --link, or one of your own with its rate, such as --link bus=25GB/s"},
		"several": {overLink("bus", 1, nil, "b"), "(bus, socket) with --link, or one of your own with its rate, such as --link bus=25GB/s"},
	} {
		own := overLink("socket", 1, nil, "a")
		own.Devices, own.Groups = append(own.Devices, x.more.Devices...), append(own.Groups, x.more.Groups...)
		p := beside(own, "a", "b")
		eachSheet(p, func(_ string, s *op.Sheet) { *s = op.Sheet{} })
		_, err := AssumeLinks(p, own, named(t, p, "1x(1 a/engine + 1 b/engine)"))
		if err == nil || err.Error() != "no link between a/engine and others was measured, and its datasheet names no rate; name a link class that the profile was measured over "+x.want {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
