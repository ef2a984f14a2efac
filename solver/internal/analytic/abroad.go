package analytic

import "github.com/evenkeel/evenkeel/costmodel/op"

// sides finds the links over which the members of a group on several nodes exchange rows
// inside each (see costmodel.Predictor.AbroadFactor), by node. There are none where one of
// them has no law or is the network itself: then all rows count as the network's.
func (m *Model) sides() []Link {
	nodes := m.p.NodeRanks()
	inside := make([]Link, len(nodes))
	for i, ranks := range nodes {
		if len(ranks) < 2 {
			continue
		}
		var err error
		link := m.p.Job.Cluster.Nodes[i].Link
		if inside[i], err = m.Over(link, op.KindAllToAll, ranks); err != nil || link == m.p.Job.Cluster.Network {
			return nil
		}
	}
	return inside
}

// Abroad is what a byte between nodes counts for in the law of an all-to-all among several
// nodes, 0 where all rows do.
func (m *Model) Abroad(law Link) float64 {
	if m.inside == nil {
		return 0
	}
	return m.p.Predictor.AbroadFactor(law.law)
}

// Beside is how many bytes on a port of the network take as long as one on a port inside a
// node.
func (m *Model) Beside(node int, law Link) float64 {
	const many = 1 << 26 // bytes, of which launches take little
	inside := m.inside[node]
	if inside.law == nil || law.law == nil {
		return 0
	}
	return inside.portSeconds(many) / law.portSeconds(many)
}

// portSeconds is what an all-to-all takes of which a port carries so many bytes.
func (l Link) portSeconds(bytes float64) float64 {
	n := float64(l.ranks)
	return l.Seconds(op.KindAllToAll, bytes*n/(n-1))
}
