package costmodel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// Origin is a published set of measurements that a profile was fitted to.
type Origin struct {
	Title      string `json:"title"`
	Repository string `json:"repository"`
	Licence    string `json:"licence"` // its SPDX name
	Commit     string `json:"commit"`
}

func (o Origin) validate() error {
	for _, f := range []struct{ name, value string }{{"title", o.Title}, {"repository", o.Repository}, {"licence", o.Licence}, {"commit", o.Commit}} {
		if strings.TrimSpace(f.value) == "" {
			return fmt.Errorf("%s: missing: name what was measured by others, where it lies, its licence and its commit", f.name)
		}
	}
	return nil
}

// ModelOf is the GPU model in the name of a device type, which stands before the
// slash: h100_sxm of h100_sxm/nccl-2.29.2. A name without one is a model itself.
func ModelOf(device string) string {
	model, _, _ := strings.Cut(device, "/")
	return model
}

// BorrowedStack is the software of a device type that nobody measured: after the slash of its
// name.
const BorrowedStack = "borrowed"

// IsBorrowed says that nobody measured a device type, whose laws others lend it.
func IsBorrowed(device string) bool { return strings.HasSuffix(device, "/"+BorrowedStack) }

// DeviceFor finds the device type that a cluster means: by its exact name, or by
// its GPU model the only one of the profile that has laws of both attention and
// matrix products, without which no step can be planned.
//
// Errors go on after the name: they say what is wrong with it, which device
// types there are, and the nearest name on a slip.
func (p *Profile) DeviceFor(name string) (string, error) {
	var of, able, names []string
	for _, d := range p.Devices {
		if d.Name == name {
			return name, nil
		}
		names = append(names, d.Name)
		if ModelOf(d.Name) != name {
			continue
		}
		of = append(of, d.Name)
		if p.has(d.Name, op.KindAttnFwd) && p.has(d.Name, op.KindGEMM) {
			able = append(able, d.Name)
		}
	}
	switch {
	case len(able) == 1:
		return able[0], nil
	case len(able) > 1:
		return "", fmt.Errorf("could be any of %s; name one of them in full", strings.Join(able, ", "))
	case len(of) == 1: // whatever it lacks is an error of its own
		return of[0], nil
	case len(of) > 1:
		return "", fmt.Errorf("has no laws of both attention and gemm in any of %s; measure them: evenkeel calibrate, or name one in full", strings.Join(of, ", "))
	}
	return "", fmt.Errorf("is not in the profile%s", nearestOf(name, names))
}

// nearestOf is nearest among the names and the models before their slashes.
func nearestOf(name string, names []string) string {
	known := slices.Clone(names)
	for _, n := range names {
		if m := ModelOf(n); m != n && !slices.Contains(known, m) && !strings.Contains(name, "/") {
			known = append(known, m)
		}
	}
	return nearest(name, known)
}

func (p *Profile) has(device string, k op.Kind) bool {
	return slices.ContainsFunc(p.Laws, func(l Law) bool { return l.Device == device && l.Op == k })
}

// Named is the cluster with every name replaced by that of the device type it
// stands for (see DeviceFor).
func (c Cluster) Named(p *Profile) (Cluster, error) {
	out := c
	out.Nodes = nil
	for at, n := range c.Nodes {
		n.Devices = slices.Clone(n.Devices)
		for i := range n.Devices {
			name, err := p.DeviceFor(n.Devices[i].Device)
			if err != nil {
				return Cluster{}, &FieldError{fmt.Sprintf("nodes[%d].devices[%d].device", at, i), fmt.Errorf("device type %q of node %s %w", n.Devices[i].Device, n.Name, err)}
			}
			n.Devices[i].Device = name
		}
		out.Nodes = append(out.Nodes, n)
	}
	return out, out.Validate()
}

// answers says whether a group has a law of a collective, for whatever elements.
func (q *Predictor) answers(g op.GroupType, kind op.Kind) bool {
	return slices.ContainsFunc(q.types[wireOf{g.Link, kind}], func(v op.Variant) bool {
		_, ok := q.laws[lawKey{kind, v, g.Name}]
		return ok
	})
}

// renamed gives members the device types that a group has of their models; nil
// where it lacks one.
func renamed(members, like []op.Member) []op.Member {
	var as []op.Member
	for _, m := range members {
		at := slices.IndexFunc(like, func(o op.Member) bool { return ModelOf(o.Device) == ModelOf(m.Device) })
		if at < 0 {
			return nil
		}
		known := slices.IndexFunc(as, func(o op.Member) bool { return o.Device == like[at].Device })
		if known >= 0 {
			as[known].Count += m.Count
			continue
		}
		as = append(as, op.Member{Device: like[at].Device, Count: m.Count})
	}
	return as
}

// typesWithin says whether all device types of a group are among those of another.
func typesWithin(a, b []op.Member) bool {
	return !slices.ContainsFunc(a, func(m op.Member) bool {
		return !slices.ContainsFunc(b, func(o op.Member) bool { return o.Device == m.Device })
	})
}
