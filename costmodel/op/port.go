package op

import (
	"fmt"
	"math"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Port bounds what a rank sends to the others of its group, one direction.
type Port struct {
	// PerS is the rate that no rank exceeds.
	PerS units.BytesPerS `json:"peak_bytes_per_s"`
	// InNetwork says that something between the ranks may reduce what they send, as switches
	// with SHARP do (NVLink's and InfiniBand's) and a host that messages go through.
	InNetwork bool `json:"in_network_reduction,omitzero"`
}

// Sent is the fewest bytes that the busiest of n ranks sends in a collective, `wire` being
// its Work().Wire. This is less than wire in an all_reduce alone, whose reduce-scatter and
// all-gather send every byte 2(n-1)/n times, the least there is where ranks alone add up
// (Patarasuk and Yuan 2009). Where something between them does, every byte of the buffer
// still leaves each rank once, or else its part is in nobody's sum.
func (p Port) Sent(k Kind, n int, wire units.Bytes) float64 {
	if p.InNetwork && k == KindAllReduce {
		return float64(wire) * float64(n) / float64(2*(n-1))
	}
	return float64(wire)
}

// Least is the time that a collective cannot be faster than, its latency left out.
func (p Port) Least(k Kind, n int, wire units.Bytes) units.Seconds {
	return units.Seconds(p.Sent(k, n, wire) / float64(p.PerS))
}

// Validate reports a rate that is none.
func (p Port) Validate() error {
	if !(p.PerS > 0) || math.IsInf(float64(p.PerS), 0) {
		return fmt.Errorf("peak_bytes_per_s: %v: must be positive", float64(p.PerS))
	}
	return nil
}

// The link classes that a datasheet's own links may be of.
const (
	nvlink = "nvlink"
	xgmi   = "xgmi"
	pcie   = "pcie"
)

// fastestBus is the rate of the fastest bus there is, in bytes a second and one direction:
// 16 lanes of PCIe 6.0.
const fastestBus = 128e9

// ownLinks says whether devices talk to each other over links of their own: faster than to
// their host, or than over any bus (the host of a GH200 is behind NVLink too).
func (s Sheet) ownLinks() bool { return s.LinkPerS > min(s.HostPerS, fastestBus) }

// Fabric is the class of the links that LinkPerS is of, as far as the rates tell. It is ""
// where they do not.
func (s Sheet) Fabric() string {
	amd := strings.HasPrefix(s.Arch, "gfx")
	switch {
	case s.LinkPerS == 0 || s.HostPerS == 0:
		return ""
	case s.ownLinks() && amd:
		return xgmi
	case s.ownLinks():
		return nvlink
	case amd:
		return ""
	}
	return pcie
}

// SwitchReduces says whether a switch between such devices may reduce what they send: NVSwitch
// does since Hopper (NVLink SHARP). Of an unknown generation it may.
func (s Sheet) SwitchReduces() bool {
	for _, older := range []string{"sm6", "sm7", "sm8", "gfx"} {
		if strings.HasPrefix(s.Arch, older) {
			return false
		}
	}
	return true
}

// Port is that of a device to the others of a group, fabric being the class of its own
// links; the zero Port where nothing is known.
//
// Within a node it is the rate of these links. Between nodes a message may cross them as
// well as the network, and a device with links of its own has no other ways out than these
// and the bus to its host, behind which most adapters are; their own rate differs by machine.
// Over any other link, such as bridges of which the datasheet says nothing, no rank sends
// faster than its memory is read. How fast smaller messages were bounds nothing: libraries
// change protocols, after which messages of aiconfigurator's tables move up to 4.6 times as
// fast as at sizes where their rate had stopped rising.
func (s Sheet) Port(g GroupType, fabric string) Port {
	switch {
	case g.Nodes == 1 && g.Link == fabric && s.LinkPerS > 0:
		ownOnly := fabric == nvlink || fabric == xgmi // and no host between the ranks
		return Port{PerS: units.BytesPerS(max(s.LinkPerS, s.HostPerS)), InNetwork: !ownOnly || s.SwitchReduces()}
	case g.Nodes > 1 && s.HostPerS > 0 && s.ownLinks():
		return Port{PerS: units.BytesPerS(s.LinkPerS + max(s.HostPerS, s.NetPerS)), InNetwork: true}
	}
	return Port{PerS: units.BytesPerS(s.MemoryPerS), InNetwork: true}
}

// Port is that of the group's fastest member, for not all send alike in an uneven
// all-to-all; the zero Port where that of any is not known.
func (g GroupType) Port(of func(device string) Port) Port {
	var fastest Port
	for _, m := range g.Members {
		p := of(m.Device)
		if p.PerS == 0 {
			return Port{}
		}
		fastest = fastest.Or(p)
	}
	return fastest
}

// Or bounds what either of two ports may be.
func (p Port) Or(o Port) Port {
	return Port{PerS: max(p.PerS, o.PerS), InNetwork: p.InNetwork || o.InNetwork}
}
