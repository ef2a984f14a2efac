package costmodel

import (
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

func TestMakers(t *testing.T) {
	gpu := func(name, arch string) op.DeviceType {
		return op.DeviceType{Name: name, Sheet: op.Sheet{BF16PerS: 1e14, Arch: arch}}
	}
	q := NewPredictor(&Profile{Devices: []op.DeviceType{gpu("h100", "sm90"), gpu("a100", "sm80"), gpu("mi250", "gfx90a"), gpu("mi300", "gfx942"), gpu("b60", ""), {Name: "cpu"}}})
	for _, c := range []struct{ devices, want []string }{
		{[]string{"h100", "a100", "cpu", "h100"}, nil},
		{[]string{"b60", "cpu", "none"}, nil},
		{[]string{"mi300", "h100", "mi250", "mi300"}, []string{"AMD (mi250, mi300)", "NVIDIA (h100)"}},
		{[]string{"h100", "b60"}, []string{"NVIDIA (h100)", "a maker that the profile does not tell (b60)"}},
	} {
		if got := q.Makers(c.devices); !slices.Equal(got, c.want) {
			t.Errorf("%v: %q, want %q", c.devices, got, c.want)
		}
	}
}
