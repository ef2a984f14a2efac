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
	for _, c := range []struct{ devices, known, unknown []string }{
		{[]string{"h100", "a100", "cpu", "h100"}, nil, nil},
		{[]string{"b60", "cpu", "none"}, nil, nil},
		{[]string{"mi300", "h100", "mi250", "mi300"}, []string{"AMD (mi250, mi300)", "NVIDIA (h100)"}, nil},
		{[]string{"h100", "b60"}, []string{"NVIDIA (h100)"}, []string{"b60"}},
	} {
		if known, unknown := q.Makers(c.devices); !slices.Equal(known, c.known) || !slices.Equal(unknown, c.unknown) {
			t.Errorf("%v: %q, %q", c.devices, known, unknown)
		}
	}
}
