package torch

import (
	"errors"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/go-json-experiment/json"
)

// Whatever a worker writes, its frame is refused or understood, and every
// failure it reports has a class.
func FuzzFrame(f *testing.F) {
	for _, line := range []string{
		`{"t":"result","id":1,"samples_ns":[1,2]}`,
		`{"t":"error","id":2,"class":"oom","msg":"no room","fatal":false}`,
		`{"t":"hello","id":1,"proto":1,"device":{"kind":"cuda","name":"NVIDIA X","sm":[9,0]},"kernels":{"a":{"ok":true}}}`,
		`{"t":"result","id":1,"errors":{"out":null},"gpu":{"sm_mhz":[1980,1965],"reasons":4,"viol_ns":{"power":5}}}`,
		`{"t":"result","samples_ns":[NaN]}`, `{`, `[]`, ``,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		got, err := decodeFrame(line)
		if err != nil {
			return
		}
		var e *profile.OpError
		if err := got.err(); err != nil && (!errors.As(err, &e) || e.Class == "") {
			t.Errorf("%q: %v", line, err)
		}
		if (got.err() == nil) != (got.T != "error") {
			t.Errorf("%q: %v", line, got.err())
		}
		r := &rank{}
		if g := r.guard(got, op.KindGEMM, []units.Seconds{1e-3}, 1); g.GPU != nil && (g.GPU.PowerShare > 1 || g.GPU.ThermalShare < 0) {
			t.Errorf("%q: %+v", line, *g.GPU)
		}
		if d := (&Backend{}).deviceType(local{Greeting: got.greeting}, profile.Machine{}); d.Fingerprint == "" {
			t.Errorf("%q: %+v", line, d)
		}
	})
}

// What other tasks send is refused or understood, and obeyed without harm.
func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"do":"line","worker":0,"age":1,"line":"{}"}`))
	f.Add([]byte(`{"do":"ended","worker":-1,"age":1,"end":"gone"}`))
	f.Add([]byte(`{"do":"offer","task":{"locals":[{"on":"cpu","threads":-3}]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var m message
		if json.Unmarshal(body, &m) != nil {
			return
		}
		r := &remoteWire{out: make(chan event, 2)}
		r.deliver(m)
		r.deliver(message{Do: doEnded, End: "end"})
		for range r.out {
		}
		if m.Task != nil {
			b := &Backend{config: Config{HeadDims: []int{64}}}
			b.place([]task{*m.Task})
			for _, r := range b.ranks {
				if r.place == "" {
					t.Errorf("%q: %+v", body, r)
				}
			}
		}
	})
}
