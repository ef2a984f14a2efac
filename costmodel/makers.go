package costmodel

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// makers are who makes GPUs, by how names of their architectures begin: sm90, gfx942.
var makers = map[string]string{"sm": "NVIDIA", "gfx": "AMD"}

// Makers lists the makers of the GPUs among device types, with these, as "AMD (mi300x)", and the
// types of GPUs whose maker the profile does not tell; nil where there is one maker at most.
// NCCL, RCCL and oneCCL form no communicator across makers.
func (q *Predictor) Makers(devices []string) (known, unknown []string) {
	of := map[string][]string{}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(devices))) {
		d, err := q.Device(name)
		if err != nil || d.Sheet.BF16PerS == 0 {
			continue // a processor
		}
		maker := makers[strings.TrimRight(d.Sheet.Arch, "0123456789abcdef")]
		if maker == "" {
			unknown = append(unknown, name)
			continue
		}
		of[maker] = append(of[maker], name)
	}
	if len(of) == 0 || len(of) == 1 && len(unknown) == 0 {
		return nil, nil
	}
	for _, maker := range slices.Sorted(maps.Keys(of)) {
		known = append(known, fmt.Sprintf("%s (%s)", maker, strings.Join(of[maker], ", ")))
	}
	return known, unknown
}
