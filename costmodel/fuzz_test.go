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
	f.Add([]byte(`{"schema":"evenkeel.profile/v1","simulated":false,"devices":[{"name":"d","model":"m","stack":"s","fingerprint":"f","parallel":1,"memory_bytes":1}],` +
		`"groups":[{"name":"2 d over w","members":[{"device":"d","count":2}],"nodes":1,"link":"w"}],"holdout":{"seed":1,"share":0.2},"laws":[{"op":"all_reduce","group":"2 d over w",` +
		`"curve":{"form":"log_log","bytes":[10,20],"time_s":[1e-6,2e-6],"half_widths":[0.1,0.2]},` +
		`"range":[{"axis":"bytes","min":1,"max":2}],"spread":{"lo":0.9,"hi":1.1},"port":{"peak_bytes_per_s":1e6,"in_network_reduction":true}}],` +
		`"steps":[{"op":"all_reduce","device":"d","link":"w","measured_ranks":[2],"alpha_s":1e-6,"s_per_rank":0,"s_per_byte":1e-9,"s_per_root_byte":0,` +
		`"chunks":{"chunk_bytes":[5,10],"factors":[1,1.1],"half_widths":[0.1,0.2]}}]}`))
	attention := func(kernel string) string {
		return `{"op":"attn_fwd","variant":{"mask":"diag","head_dim":64,"dtype":"f32","kernel":"` + kernel + `"},"device":"d",` +
			`"linear":{"parallel":2,"launch_s":{"value":1e-6,"lo95":1e-6,"hi95":1e-6},"s_per_flop":{"value":1e-9,"lo95":1e-9,"hi95":1e-9},"s_per_row":{"value":0,"lo95":0,"hi95":0},"s_per_byte":{"value":0,"lo95":0,"hi95":0},"s_per_tail_flop":{"value":0,"lo95":0,"hi95":0}},` +
			`"range":[{"axis":"q_len","min":1,"max":2},{"axis":"kv_len","min":1,"max":2},{"axis":"q_heads","min":1,"max":2},{"axis":"kv_heads","min":1,"max":2}],"spread":{"lo":0.9,"hi":1.1}}`
	}
	kernels := `{"schema":"evenkeel.profile/v1","simulated":false,"devices":[{"name":"d","model":"m","stack":"s","fingerprint":"f","parallel":2,"memory_bytes":9}],"groups":[],"holdout":{"seed":1,"share":0.2},` +
		`"laws":[` + attention("fa2") + `,` + attention("fa3") + `],"memory":[{"device":"d","capacity_bytes":5,"reserve_bytes":1,"layers":[{"hidden":1,"ffn":1,"q_heads":1,"kv_heads":1,"head_dim":1,"dtype":"f32","per_token_bytes":1.5,"base_bytes":-3,"min_tokens":1,"max_tokens":2,"points":2}]}],` +
		`"overlaps":[{"on":"d","compute":"gemm","comm":"h2d","slowed":"comm","ratio":1.1,"lo":1,"hi":1.2,"points":3}],"outliers":[{"on":"d","place":"n0/g1","scale":1.1,"points":3}]}`
	var p Profile
	if err := doc.Decode("x", []byte(kernels), &p); err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(kernels))
	f.Fuzz(func(t *testing.T, data []byte) {
		var p Profile
		if doc.Decode("x", data, &p) != nil {
			return
		}
		q := NewPredictor(&p)
		for _, d := range p.Devices {
			if known, err := q.Device(d.Name); err != nil || d.Memory > 0 && (known.Memory <= 0 || known.Memory > d.Memory) {
				t.Errorf("%s: %d bytes count of %d, %v", d.Name, known.Memory, d.Memory, err)
			}
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
