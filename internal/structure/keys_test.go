package structure

import (
	"reflect"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	tasks "github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/replay"
	"github.com/evenkeel/evenkeel/replay/comparison"
	"github.com/evenkeel/evenkeel/results"
	"github.com/evenkeel/evenkeel/serve"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/evenkeel/evenkeel/solver/multitask"
	"github.com/evenkeel/evenkeel/solver/pipeline"
)

// Every JSON key of a quantity ends in its unit, so that no reader has to
// guess it. The axes of op shapes keep the field's names (q_len, m).
func TestKeysOfQuantitiesEndInTheirUnit(t *testing.T) {
	units := map[reflect.Type]string{
		reflect.TypeFor[units.Seconds]():   "s",
		reflect.TypeFor[units.Bytes]():     "bytes",
		reflect.TypeFor[units.Tokens]():    "tokens",
		reflect.TypeFor[units.FLOPs]():     "flops",
		reflect.TypeFor[units.FLOPsPerS](): "flops_per_s",
		reflect.TypeFor[units.BytesPerS](): "bytes_per_s",
	}
	seen := map[reflect.Type]bool{}
	checked := 0
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			walk(typ.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		if seen[typ] || strings.HasSuffix(typ.PkgPath(), "costmodel/op") && typ.Name() != "DeviceType" {
			return
		}
		seen[typ] = true
		for f := range typ.Fields() {
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if key == "-" || !f.IsExported() {
				continue
			}
			if unit, ok := units[f.Type]; ok {
				checked++
				if key != unit && !strings.HasSuffix(key, "_"+unit) {
					t.Errorf("%s.%s: key %q does not end in _%s", typ, f.Name, key, unit)
				}
			}
			walk(f.Type)
		}
	}
	for _, document := range []any{
		costmodel.Profile{},
		costmodel.Step{},
		costmodel.Job{},
		profile.Header{},
		profile.Schedule{},
		profile.Point{},
		profile.End{},
		profile.Outlook{},
		fit.Report{},
		solver.Plan{},
		batch.Document{},
		tasks.Tasks{},
		multitask.Document{},
		pipeline.Document{},
		groupcost.Document{},
		results.LengthSummary{},
		serve.Answer{},
		serve.Setup{},
		comparison.Report{},
		replay.Header{},
		replay.Span{},
		replay.Step{},
	} {
		walk(reflect.TypeOf(document))
	}
	if checked < 10 {
		t.Errorf("only %d quantities were found", checked)
	}
}
