package fit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
)

// only is which part of recordings a data set has; the zero value is all.
type only struct {
	stacks  []string        // software that device types of the data set were measured under; nil: any
	met     []string        // in the recordings, in order
	used    map[string]bool // of stacks
	without map[string]bool // device types and groups that are left out
}

// Only leaves out of the recordings that are added from now on what was measured under other
// software than the named, such as nccl-2.27.3.
func (d *Data) Only(stacks []string) {
	if len(stacks) > 0 {
		d.only = only{stacks: stacks, used: map[string]bool{}, without: map[string]bool{}}
	}
}

// Met says of which software that Only was given no recording has anything, and what they have.
func (d *Data) Met() error {
	for _, s := range d.only.stacks {
		if !d.only.used[s] {
			return fmt.Errorf("%q: nothing in the recordings was measured under it; they have %s", s, strings.Join(d.only.met, ", "))
		}
	}
	return nil
}

// of is the header of a recording without what is left out.
func (o *only) of(h *profile.Header) *profile.Header {
	if o.stacks == nil {
		return h
	}
	kept := *h
	kept.Devices = slices.DeleteFunc(slices.Clone(h.Devices), func(d op.DeviceType) bool {
		if !slices.Contains(o.met, d.Stack) {
			o.met = append(o.met, d.Stack)
		}
		o.without[d.Name] = true
		_, named, _ := strings.Cut(d.Name, "/") // as plans have it
		for _, s := range o.stacks {
			if s == d.Stack || s == named {
				o.without[d.Name], o.used[s] = false, true
			}
		}
		return o.without[d.Name]
	})
	kept.Groups = slices.DeleteFunc(slices.Clone(h.Groups), func(g op.GroupType) bool {
		o.without[g.Name] = slices.ContainsFunc(g.Members, func(m op.Member) bool { return o.without[m.Device] })
		return o.without[g.Name]
	})
	kept.Places = slices.DeleteFunc(slices.Clone(h.Places), func(p profile.Place) bool { return o.without[p.On] })
	return &kept
}
