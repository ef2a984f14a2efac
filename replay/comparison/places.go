package comparison

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/replay"
)

// Links are the link classes of the profile by which plans of batches, pipelines and tasks are
// predicted, since a trace of these has no cluster. A class may be empty if the profile
// has only one.
type Links struct {
	Inside  string // between ranks of a host
	Network string // between hosts
}

// places are the devices of a run as a cluster: its hosts, each with its device
// types in the order of their first rank. A cluster lists devices of a type
// together, so that its ranks may have another order than those of the run.
type places struct {
	cluster costmodel.Cluster
	ranks   []int // of the run, by rank of the cluster
	at      []int // of the cluster, by rank of the run
}

// place makes the cluster of a plan of batches, a pipeline or tasks.
func (c *making) place(x *replay.PlanRun) (*places, error) {
	ranks := c.rec.Header.Ranks
	p := &places{at: make([]int, len(ranks))}
	var nodes []string
	for _, host := range distinct(ranks, func(r replay.Rank) string { return r.Host }) {
		of := slices.DeleteFunc(slices.Clone(ranks), func(r replay.Rank) bool { return r.Host != host })
		var devices []string
		for _, device := range distinct(of, func(r replay.Rank) string { return r.Device }) {
			devices = append(devices, fmt.Sprintf("%d %s", p.seat(of, device), device))
		}
		nodes = append(nodes, "1x("+strings.Join(devices, " + ")+")")
	}
	var err error
	if p.cluster, err = costmodel.ParseCluster(strings.Join(nodes, " + ")); err != nil || !talks(x, ranks, c.updates()) {
		return p, err
	}
	p.cluster, err = p.cluster.Resolve(c.profile, c.links.Inside, c.links.Network)
	return p, err
}

// seat gives the ranks of a host with a device type their places; it returns how
// many they are.
func (p *places) seat(host []replay.Rank, device string) int {
	before := len(p.ranks)
	for _, r := range host {
		if r.Device == device {
			p.at[r.Rank] = len(p.ranks)
			p.ranks = append(p.ranks, r.Rank)
		}
	}
	return len(p.ranks) - before
}

// distinct are the values of ranks in the order of their first one.
func distinct(ranks []replay.Rank, of func(replay.Rank) string) []string {
	var all []string
	for _, r := range ranks {
		if !slices.Contains(all, of(r)) {
			all = append(all, of(r))
		}
	}
	return all
}

// talks says whether any ranks of a plan exchange bytes, for which they need links. whole: it
// was run in whole steps.
func talks(x *replay.PlanRun, ranks []replay.Rank, whole bool) bool {
	if x.Pipeline != nil {
		return len(x.Pipeline.Stages) > 1 || len(x.Pipeline.Stages[0].Ranks) > 1
	}
	if x.Tasks != nil {
		return tasksTalk(x.Tasks)
	}
	if whole && len(ranks)-len(x.LeftOut) > 1 {
		return true // gradients, if nothing else
	}
	for _, side := range x.Groups {
		for _, g := range side {
			if len(g.Ranks) > 1 {
				return true
			}
		}
	}
	return false
}

// layout is that of a group, over all ranks of the cluster.
func (p *places) layout(g *replay.GroupRun) costmodel.Layout {
	l := costmodel.Layout{Shards: make([]costmodel.Shard, len(p.at)), Schedule: g.Layout.OneByOne()}
	for i, s := range g.Layout.Shards {
		l.Shards[p.at[g.Ranks[i]]] = s
	}
	for _, members := range g.Layout.Groups {
		var x costmodel.Group
		for _, m := range members {
			x = append(x, costmodel.HeadShare{Rank: p.at[g.Ranks[m.Rank]], QHeads: m.QHeads})
		}
		l.Groups = append(l.Groups, x)
	}
	return l
}
