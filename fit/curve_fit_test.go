package fit

import (
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// A library's recording becomes laws with intervals size by size, and steps for
// the groups that were not measured; the document stays small.
func TestFitOfALibrary(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	d := NewData()
	for _, r := range tables(t, "aiconfigurator/a100_sxm/nccl.csv") {
		d.addTable(r)
	}
	p, err := Fit(d, Defaults())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	if len(p.Laws) != 24 || len(p.Steps) != 8 {
		t.Fatalf("%d laws and %d steps, want 24 and 8", len(p.Laws), len(p.Steps))
	}
	for _, l := range p.Laws {
		if l.Curve.Form != costmodel.LogLog || len(l.Curve.HalfWidths) == 0 || l.Held.Median > 0.2 {
			t.Errorf("%s (%s) on %s: %s, held %+v", l.Op, l.Variant, l.On(), l.Form(), l.Held)
		}
	}
	text, err := json.Marshal(p, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil || len(text) > 115<<10 {
		t.Errorf("%d KB, %v", len(text)>>10, err)
	}
	t.Logf("24 laws and 8 steps take %d KB", len(text)>>10)
	law, factor, err := costmodel.NewCallPredictor(p).Over("nvlink", op.KindAllReduce, []op.Member{{Device: "a100_sxm", Count: 16}})
	if err != nil || factor != 1 || law.Group != "16 a100_sxm over nvlink" {
		t.Fatalf("%+v, %v, %v", law, factor, err)
	}
	s := op.AllReduce{Message: op.Message{Group: 16, Bytes: 64 << 20}}
	if e := law.Predict(s); e.Source != costmodel.Transferred || !(e.Lo < e.Mid && e.Mid < e.Hi) {
		t.Errorf("%+v", e)
	}
}

func (d *Data) addGroup(g op.GroupType) {
	for _, known := range d.Groups {
		if known.Name == g.Name {
			return
		}
	}
	d.Groups = append(d.Groups, g)
}
