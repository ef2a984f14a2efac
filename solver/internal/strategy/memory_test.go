package strategy

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// What is needed beyond the memory shows, even where both would print alike.
func TestMemoryErrorTellsTheTwoSidesApart(t *testing.T) {
	usable := Usable(80 * units.GiB)
	for over, want := range map[units.Bytes]string{
		10 * units.GiB: "rank 0 would need 87.6 GiB of the usable 77.6 GiB (0.97 x 80 GiB): ",
		3 * units.MiB:  "rank 0 would need 3 MiB more than the usable 77.6 GiB (0.97 x 80 GiB): ",
		1:              "rank 0 would need 1 B more than the usable 77.6 GiB (0.97 x 80 GiB): ",
	} {
		e := &MemoryError{Place: "rank 0", Component: "states", Memory: costmodel.Memory{States: usable + over, Capacity: 80 * units.GiB}}
		if !strings.HasPrefix(e.Error(), want) {
			t.Errorf("%s, want %s", e, want)
		}
	}
}
