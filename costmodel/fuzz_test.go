package costmodel

import (
	"math"
	"os"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
)

// Whatever profile is accepted, its laws predict finite times in order.
func FuzzProfile(f *testing.F) {
	data, err := os.ReadFile("../results/evidence/cpu/calibration.profile.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"schema":"evenkeel.profile/v1","simulated":false,"devices":[{"name":"d","model":"m","stack":"s","fingerprint":"f","parallel":1,"memory_bytes":1}],` +
		`"groups":[],"holdout":{"seed":1,"share":0.2},"laws":[{"op":"norm","variant":{"dtype":"f32"},"device":"d",` +
		`"curve":{"form":"log_log","knots":[{"bytes":10,"time_s":1e-6},{"bytes":20,"time_s":2e-6}]},` +
		`"range":[{"axis":"tokens","min":1,"max":2},{"axis":"width","min":1,"max":2}],"spread":{"lo":0.9,"hi":1.1}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var p Profile
		if doc.Decode("x", data, &p) != nil {
			return
		}
		for i := range p.Laws {
			l := &p.Laws[i]
			spec, err := op.Lookup(l.Op)
			if err != nil || spec.Measures != op.Time {
				continue
			}
			e := l.Predict(spec.Example)
			if !(e.Mid >= 0) || math.IsNaN(float64(e.Hi)) || e.Lo > e.Mid || e.Mid > e.Hi {
				t.Errorf("%s: %+v", l.Op, e)
			}
		}
	})
}
