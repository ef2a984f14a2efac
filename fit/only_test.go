package fit

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
)

// Of a recording of several software stacks a data set may have some: their device types, and the
// groups and places of these alone.
func TestOnlySomeSoftware(t *testing.T) {
	in := func(device string) op.GroupType {
		return op.NewGroupType([]op.Member{{Device: device, Count: 2}}, 1, "wire")
	}
	h := profile.Header{
		Devices: []op.DeviceType{{Name: "big/net-1", Stack: "net-1"}, {Name: "big/net-2", Stack: "net-2"}, {Name: "big/engine_1_ab12", Stack: "engine 1"}},
		Groups:  []op.GroupType{in("big/net-1"), in("big/net-2")},
		Places:  []profile.Place{{On: in("big/net-1").Name}, {On: in("big/net-2").Name}},
	}
	for _, c := range []struct{ stacks, want string }{
		{"net-2", "big/net-2, 2 big/net-2 over wire, 2 big/net-2 over wire"},
		{"net-1|engine 1", "big/net-1, big/engine_1_ab12, 2 big/net-1 over wire, 2 big/net-1 over wire"},
		{"engine_1_ab12", "big/engine_1_ab12"},
	} {
		d := NewData()
		d.Only(strings.Split(c.stacks, "|"))
		kept := d.only.of(&h)
		var got []string
		for _, x := range kept.Devices {
			got = append(got, x.Name)
		}
		for _, x := range kept.Groups {
			got = append(got, x.Name)
		}
		for _, x := range kept.Places {
			got = append(got, x.On)
		}
		if d := cmp.Diff(c.want, strings.Join(got, ", ")); d != "" {
			t.Errorf("%s: %s", c.stacks, d)
		}
		if err := d.Met(); err != nil {
			t.Error(err)
		}
	}
	d := NewData()
	d.Only([]string{"net-2", "net-3"})
	d.only.of(&h)
	if err := d.Met(); err == nil || err.Error() != `"net-3": nothing in the recordings was measured under it; they have net-1, net-2, engine 1` {
		t.Error(err)
	}
	all := NewData()
	all.Only(nil)
	if all.only.of(&h) != &h || all.Met() != nil {
		t.Error("a data set of all leaves something out")
	}
}
