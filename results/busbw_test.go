package results

import (
	"math"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// busbw by nccl-tests' factors: 2(n-1)/n of the buffer for all_reduce, (n-1)/n
// for all_gather, 1 for send_recv, over the predicted time.
func TestBusbw(t *testing.T) {
	group := op.NewGroupType([]op.Member{{Device: "gpu", Count: 4}}, 1, "nvlink")
	const size = 1 << 20
	for kind, factor := range map[op.Kind]float64{op.KindAllReduce: 1.5, op.KindAllGather: 0.75, op.KindSendRecv: 1} {
		// Every call takes 1 ms.
		l := &costmodel.Law{
			Op: kind, Group: group.Name, Range: []costmodel.AxisRange{{Axis: "bytes", Min: 1, Max: size}},
			Spread: costmodel.Spread{Lo: 0.9, Hi: 1.1},
			Curve:  &costmodel.Curve{Form: costmodel.AlphaBeta, Pieces: []costmodel.Piece{{Alpha: costmodel.Coef{Value: 1e-3}}}},
		}
		got, ok := busbw(l, []op.GroupType{group})
		if want := factor * size / 1e-3; !ok || math.Abs(float64(got)-want) > 1e-6*want {
			t.Errorf("%s: %v, want %v", kind, got, want)
		}
	}
	if _, ok := busbw(&costmodel.Law{Op: op.KindGEMM, Device: "gpu"}, []op.GroupType{group}); ok {
		t.Error("a GEMM has a bus bandwidth")
	}
}
