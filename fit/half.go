package fit

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// aHalf is of f16 from bf16. Tensor cores multiply both at one rate by every datasheet that has
// both, and the bytes are the same: what is left is that libraries choose kernels of each by itself.
const aHalf = 1.1

// AssumeF16 adds laws in f16 to device types of a cluster that have theirs in bf16, where
// another has none but f16, as GPUs before Ampere do (see Borrowed): one job runs in one
// precision. It says of which types.
func AssumeF16(p *costmodel.Profile, devices []string) (of []string) {
	has := func(device string, t op.DType) bool {
		return slices.ContainsFunc(p.Laws, func(l costmodel.Law) bool {
			return l.Device == device && l.Op == op.KindAttnFwd && l.Variant.DType == t
		})
	}
	older := func(device string) bool { return has(device, op.F16) && !has(device, op.BF16) }
	if !slices.ContainsFunc(devices, older) {
		return nil
	}
	for _, d := range p.Devices {
		if slices.Contains(devices, d.Name) && d.Sheet.BF16PerS > 0 && has(d.Name, op.BF16) && !has(d.Name, op.F16) {
			of, p.Laws = append(of, d.Name), append(p.Laws, inF16(p.Laws, d.Name)...)
		}
	}
	return of
}

// inF16 is the laws of a device in bf16 that it has none in f16 of, as such.
func inF16(laws []costmodel.Law, device string) (all []costmodel.Law) {
	for _, l := range laws {
		if l.Device != device || l.Variant.DType != op.BF16 {
			continue
		}
		l.Variant.DType = op.F16
		if slices.ContainsFunc(laws, func(o costmodel.Law) bool {
			return o.Device == device && o.Op == l.Op && o.Variant == l.Variant
		}) {
			continue
		}
		l = l.InDoubt("f16 in the time of bf16 on "+device, aHalf)
		why := "f16 was not measured: it is taken to cost what bf16 does"
		if l.Assumed != "" {
			why += "; and " + l.Assumed
		}
		l.Assumed, l.Fit, l.Held, l.Rivals = why, costmodel.FitError{}, costmodel.FitError{}, nil
		all = append(all, l)
	}
	return all
}
