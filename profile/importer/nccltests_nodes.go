package importer

import (
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
)

// ncclNodes finds the number of nodes: from complete rank lines, the user, a
// single process, or the GPUs that a node of the model has.
func (s *Sink) ncclNodes(where string, t *ncclTable, models []Model, n int) (int, error) {
	doubt := t.ranks.oneName(models)
	switch process := t.threads * t.gpus; {
	case doubt != "" && s.Nodes == 0:
		return 0, fmt.Errorf("%s: %s, so that several nodes may go by one host name; say with --nodes how many there were, 1 if it was one", where, doubt)
	case t.ranks.complete(n) && t.ranks.first().hosts[""] == 0:
		nodes := len(t.ranks.first().hosts)
		switch {
		case s.Nodes > 0 && s.Nodes < nodes && inRacks(models):
			return s.Nodes, nil
		case doubt != "" && s.Nodes >= nodes && s.Nodes <= n:
			return s.Nodes, nil
		case s.Nodes > 0 && s.Nodes != nodes:
			s.Flag(where, fmt.Sprintf("the rank lines name %s, --nodes says %d; the log is taken", units.Count(nodes, "host"), s.Nodes))
		}
		return nodes, nil
	case s.Nodes > n:
		return 0, fmt.Errorf("%s: --nodes %d: more than the %d ranks", where, s.Nodes, n)
	case s.Nodes > 0:
		return s.Nodes, nil
	case process == n:
		return 1, nil
	}
	per := models[0].PerNode
	if per == 0 {
		return 0, fmt.Errorf("%s: the log does not say on how many nodes the %d ranks sat; say it with --nodes", where, n)
	}
	nodes := (n + per - 1) / per
	if t.ranks.lines > 0 {
		nodes = max(nodes, len(t.ranks.first().hosts))
	}
	s.Note(fmt.Sprintf("%s: the log does not say on how many nodes the %d ranks sat; taken as %d, filled with %d GPUs each; --nodes says otherwise", where, n, nodes, per))
	return nodes, nil
}

// oneName says what shows that one host name may be that of several nodes, which nccl-tests
// cuts at its first dot and containers often share: two ranks name one GPU, or a host has more
// of them than a node of the model, as far as the log does not tell their buses. "" for nothing.
func (r *ncclRanks) oneName(models []Model) string {
	switch {
	case r.shared != "":
		return ""
	case r.twins != "":
		return "two ranks name " + r.twins
	}
	per := models[0].PerNode
	if r.lines == 0 || per == 0 || len(models) > 1 || !r.vague && r.per < 2 {
		return ""
	}
	for _, host := range sortedKeys(r.first().hosts) {
		if n := r.first().hosts[host] * max(1, r.per); n > per {
			return fmt.Sprintf("%s name the host %s, and a node of %s has %d", units.Count(n, "rank"), host, models[0].Name, per)
		}
	}
	return ""
}

// sharing says which GPU several ranks have, given the number of nodes; "" for none. What two
// ranks call by one name are two GPUs if there are as many more nodes than host names.
func (r *ncclRanks) sharing(nodes int) string {
	if r.shared == "" && r.most > 1 && r.most > 1+nodes-len(r.first().hosts) {
		return r.twins
	}
	return r.shared
}
