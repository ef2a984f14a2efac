package fit

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// port is what bounds the messages of a library's collectives: what the datasheet says, or
// the fastest point where one is faster within op.PeakSlack; nil where nothing is known.
// Faster ones say that the datasheet is not of the links that they went over: then it is
// nil too, and odd says so.
func (l library) port(devices []op.DeviceType) (port *op.Port, odd string) {
	port = portOf(devices, l.group)
	if port == nil {
		return nil, ""
	}
	sheet := port.PerS
	for _, s := range l.strata {
		for _, p := range s.Points {
			rate := units.BytesPerS(port.Sent(s.Op, p.Shape.(op.Grouped).Ranks(), op.Volume(p.Shape)) / p.Seconds)
			if rate > op.PeakSlack*sheet {
				return nil, fmt.Sprintf("%s: a rank sends %s, more than the %s of its datasheet: no rate bounds intervals of messages over this link; is it another, or its times in another unit?", s, rate, sheet)
			}
			port.PerS = max(port.PerS, rate)
		}
	}
	return port, ""
}

// portOf is what datasheets say of the ports among a group; nil where they say nothing.
func portOf(devices []op.DeviceType, g op.GroupType) *op.Port {
	return known(g.Port(func(device string) op.Port {
		s := sheetOf(devices, device)
		return s.Port(g, s.Fabric())
	}))
}

func known(p op.Port) *op.Port {
	if p.PerS == 0 {
		return nil
	}
	return &p
}

// sheetOf is the datasheet of a device type; without figures where it is not listed.
func sheetOf(devices []op.DeviceType, name string) op.Sheet {
	i := slices.IndexFunc(devices, func(d op.DeviceType) bool { return d.Name == name })
	if i < 0 {
		return op.Sheet{}
	}
	return devices[i].Sheet
}
