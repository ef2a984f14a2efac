package op

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
)

// DeviceType is a device model with its software stack: the unit a compute law
// belongs to. The same chip under another driver, library or thread count is
// another device type, and the two are never pooled in a fit.
type DeviceType struct {
	Name        string      `json:"name"`         // as a cluster names it: "cpu:2", "h100_sxm"
	Model       string      `json:"model"`        // as the hardware names itself
	Stack       string      `json:"stack"`        // what runs on it: kernels, library and compiler versions
	Fingerprint string      `json:"fingerprint"`  // hex hash of model, stack and everything else that moves times
	Parallel    int         `json:"parallel"`     // tasks that run at a time: threads or SMs
	Memory      units.Bytes `json:"memory_bytes"` // capacity
	Sheet       Sheet       `json:"sheet,omitzero"`
}

// Validate reports the first field that is missing or out of range.
func (d DeviceType) Validate() error {
	switch {
	case d.Name == "" || strings.ContainsAny(d.Name, " +()\t\n"):
		return fmt.Errorf("name: %q: want a word without spaces, + or parentheses", d.Name)
	case d.Fingerprint == "":
		return fmt.Errorf("fingerprint: missing")
	case d.Parallel < 1 || d.Parallel > 1<<20:
		return fmt.Errorf("parallel: %d: want 1 to %d", d.Parallel, 1<<20)
	case d.Memory < 0:
		return fmt.Errorf("memory_bytes: %d: must not be negative", int64(d.Memory))
	}
	return d.Sheet.Validate()
}

// Member is a number of devices of one type in a group.
type Member struct {
	Device string `json:"device"`
	Count  int    `json:"count"`
}

// Merged adds the counts of equal device types up, in order of appearance.
func Merged(members []Member) []Member {
	var out []Member
	for _, m := range members {
		at := slices.IndexFunc(out, func(o Member) bool { return o.Device == m.Device })
		if at < 0 {
			out = append(out, m)
			continue
		}
		out[at].Count += m.Count
	}
	return out
}

// GroupType is a group signature, the unit a collective's law belongs to: a
// multiset of device types, the number of nodes they sit on, and the class of
// the links between them.
type GroupType struct {
	Name    string   `json:"name"`
	Members []Member `json:"members"`
	Nodes   int      `json:"nodes"`
	Link    string   `json:"link"` // link class: "unix_socket", "nvlink", ...
}

// NewGroupType names a group after its signature: "2 cpu:1 over unix_socket".
// Members are sorted, so equal signatures have equal names.
func NewGroupType(members []Member, nodes int, link string) GroupType {
	members = append([]Member(nil), members...)
	sort.Slice(members, func(i, j int) bool { return members[i].Device < members[j].Device })
	var parts []string
	for _, m := range members {
		parts = append(parts, fmt.Sprintf("%d %s", m.Count, m.Device))
	}
	name := strings.Join(parts, " + ") + " over " + link
	if nodes > 1 {
		name = fmt.Sprintf("%s on %d nodes", name, nodes)
	}
	return GroupType{Name: name, Members: members, Nodes: nodes, Link: link}
}

// Oversubscribed marks link classes whose ranks have fewer cores than threads:
// they wait for each other's cores, which is a property of such a machine alone.
const Oversubscribed = "_oversubscribed"

// Oversubscribed says whether the group's ranks wait for each other's cores.
func (g GroupType) Oversubscribed() bool { return strings.HasSuffix(g.Link, Oversubscribed) }

// Ranks is the number of devices in the group.
func (g GroupType) Ranks() int {
	n := 0
	for _, m := range g.Members {
		n += m.Count
	}
	return n
}

// Validate reports the first field that is missing or out of range.
func (g GroupType) Validate() error {
	switch {
	case g.Name == "":
		return fmt.Errorf("name: missing")
	case g.Link == "":
		return fmt.Errorf("link: missing: name the link class, such as unix_socket or nvlink")
	case g.Nodes < 1:
		return fmt.Errorf("nodes: %d: must be at least 1", g.Nodes)
	}
	for i, m := range g.Members {
		if m.Device == "" || m.Count < 1 {
			return fmt.Errorf("members[%d]: %d of %q: want a device type and a count of at least 1", i, m.Count, m.Device)
		}
	}
	if g.Ranks() < 2 {
		return fmt.Errorf("members: %d ranks: a group has at least 2", g.Ranks())
	}
	return nil
}
