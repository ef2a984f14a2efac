package costmodel

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// makers are who makes GPUs, by how names of their architectures begin: sm90, gfx942.
var makers = map[string]string{"sm": "NVIDIA", "gfx": "AMD"}

// Makers lists the makers of the GPUs among device types, with these, as "AMD (mi300x)", and that
// the profile does not tell the maker of some; nil where there is one maker at most.
func (q *Predictor) Makers(devices []string) []string {
	of, unknown := map[string][]string{}, []string(nil)
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
	var all []string
	for _, maker := range slices.Sorted(maps.Keys(of)) {
		all = append(all, fmt.Sprintf("%s (%s)", maker, strings.Join(of[maker], ", ")))
	}
	if len(unknown) > 0 {
		all = append(all, fmt.Sprintf("a maker that the profile does not tell (%s)", strings.Join(unknown, ", ")))
	}
	if len(all) < 2 {
		return nil
	}
	return all
}

// AcrossMakers warns of a plan on GPUs of several makers: NCCL, RCCL and oneCCL form no
// communicator of these.
func (q *Predictor) AcrossMakers(devices []string) []string {
	makers := q.Makers(devices)
	if len(makers) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("the plan is on GPUs of %s together, and neither NCCL nor RCCL nor oneCCL talks to GPUs of another maker: what crosses between them goes through host memory, by a library that does (gloo), slower than predicted here", strings.Join(makers, " and "))}
}
