package costmodel

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// Who lacks a law is told what the profile has in its place, and a command that measures
// that very law: a calibration without it measures what there is already.
func TestMissingLawNamesThoseBesideIt(t *testing.T) {
	p := usual(t)
	q := NewPredictor(p)
	for want, v := range map[string]op.Variant{
		"no law for attn_fwd (diag d256 f32) on fast in the profile, which has it for heads of 64; measure it: evenkeel calibrate --fresh --only attn_fwd --model config.json, then fit again":         {Mask: op.Diag, HeadDim: 256, DType: op.F32},
		"no law for attn_fwd (diag d64 f16) on fast in the profile, which has it in f32: plan with --dtype f32, or measure it: evenkeel calibrate --fresh --only attn_fwd --dtype f16, then fit again": {Mask: op.Diag, HeadDim: 64, DType: op.F16},
		"no law for attn_fwd (diag d64 f32 window 9) on fast in the profile; measure it: evenkeel calibrate --fresh --only attn_fwd, then fit again":                                                   {Mask: op.Diag, HeadDim: 64, DType: op.F32, Window: 9},
	} {
		if _, err := q.Law("fast", op.KindAttnFwd, v); err == nil || err.Error() != want {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	// Of links there are no such laws, and no flag of a plan chooses among them.
	if _, _, err := q.Over("other", op.KindSendRecv, []op.Member{{Device: "fast", Count: 2}}); err == nil || !strings.Contains(err.Error(), "in the profile; measure it") {
		t.Error(err)
	}
}
