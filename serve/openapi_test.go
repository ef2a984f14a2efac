package serve

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// schema is one of the description.
type schema = map[string]any

// walk is a schema's walk beside a type.
type walk struct {
	t    *testing.T
	all  schema          // by name
	idle map[string]bool // keys of a type that answers never have
}

// schemas are those of the description, by name.
func schemas(t *testing.T) schema {
	t.Helper()
	var d struct {
		Components struct{ Schemas schema }
	}
	if err := yaml.Unmarshal(openAPI, &d); err != nil {
		t.Fatal(err)
	}
	return d.Components.Schemas
}

// resolved follows a reference.
func (w walk) resolved(s schema) schema {
	if ref, ok := s["$ref"].(string); ok {
		s, _ = w.all[strings.TrimPrefix(ref, "#/components/schemas/")].(schema)
	}
	return s
}

// same reports what a schema lacks of a type, or has beyond it.
func (w walk) same(at string, s any, of reflect.Type) {
	w.t.Helper()
	stated, _ := s.(schema)
	is := w.resolved(stated)
	kind := map[reflect.Kind]string{
		reflect.Slice: "array", reflect.Struct: "object", reflect.Bool: "boolean", reflect.Float64: "number", reflect.Int: "integer", reflect.Int64: "integer", reflect.String: "string",
	}
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	want, got := kind[of.Kind()], is["type"]
	if is["enum"] != nil || is["const"] != nil {
		got = "string"
	}
	if got != want {
		w.t.Errorf("%s: is described as %v, want %s", at, got, want)
	}
	switch of.Kind() {
	case reflect.Slice:
		w.same(at+"[]", is["items"], of.Elem())
	case reflect.Struct:
		has, _ := is["properties"].(schema)
		keys := fields(of)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			property, there := has[key].(schema)
			if !there {
				if !w.idle[key] {
					w.t.Errorf("%s.%s: is not described", at, key)
				}
				continue
			}
			if text, _ := property["description"].(string); text == "" && w.resolved(property)["description"] == nil {
				w.t.Errorf("%s.%s: has no description", at, key)
			}
			w.same(at+"."+key, property, keys[key])
		}
		for key := range has {
			if keys[key] == nil {
				w.t.Errorf("%s.%s: is described, and there is none", at, key)
			}
		}
	}
}

// fields are the types of a struct's JSON keys, those of embedded ones included.
func fields(of reflect.Type) map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(of) {
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key != "" && f.IsExported() {
			all[key] = f.Type
		}
	}
	return all
}

// What goes over the socket and what is described of it are the same, key by key.
func TestOpenAPIDescribesEveryKey(t *testing.T) {
	w := walk{t, schemas(t), map[string]bool{ // of schedules groups of a batch have own_last alone: see solver/batch
		"keep_tail": true, "head_chunks": true, "two_batch_overlap": true, "weave_forward": true, "weave_backward": true,
	}}
	for name, of := range map[string]reflect.Type{
		"Answer": reflect.TypeFor[Answer](), "Setup": reflect.TypeFor[Setup](), "Batch": reflect.TypeFor[Batch](), "Problem": reflect.TypeFor[Problem](), "Pipeline": reflect.TypeFor[Pipeline](),
	} {
		w.same(name, w.all[name], of)
	}
	if len(w.all) != 7 { // and Plan and Stage, of these
		t.Errorf("%d schemas", len(w.all))
	}
}

// Keys that must be there are those that are never left out.
func TestOpenAPIRequiresWhatIsAlwaysThere(t *testing.T) {
	all := schemas(t)
	for name, of := range map[string]reflect.Type{"Answer": reflect.TypeFor[Answer](), "Problem": reflect.TypeFor[Problem]()} {
		var want []string
		for _, f := range reflect.VisibleFields(of) {
			if key, options, _ := strings.Cut(f.Tag.Get("json"), ","); !strings.Contains(options, "omit") {
				want = append(want, key)
			}
		}
		var got []string
		required, _ := all[name].(schema)["required"].([]any)
		for _, key := range required {
			got = append(got, key.(string))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// Every path is described, and so is every code that a problem may have.
func TestOpenAPINamesEveryPathAndCode(t *testing.T) {
	paths := map[string]bool{}
	for operation := range described(t) {
		_, path, _ := strings.Cut(operation, " ")
		paths[path] = true
	}
	want := []string{"/healthz", "/metrics", "/openapi.yaml", "/v1/jobs/{job}/batches", "/v1/jobs/{job}/plans/{step}", "/v1/plan", "/v1/setup"}
	if got := slices.Sorted(maps.Keys(paths)); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	code, _ := schemas(t)["Problem"].(schema)["properties"].(schema)["code"].(schema)
	var got []string
	for _, c := range code["enum"].([]any) {
		got = append(got, c.(string))
	}
	codes := []string{"bad_request", "bad_length", "too_many_sequences", "too_large", "timeout", "unauthorized", "not_found", "bad_method", "conflict", "queue_full", "draining", "journal", "internal"}
	if !slices.Equal(got, codes) {
		t.Errorf("%v, want %v", got, codes)
	}
}

// What a server says of its limits is what it refuses beyond.
func TestTheSetupSaysHowLongPlanningAndWaitingMayTake(t *testing.T) {
	r := start(t, func(c *Config) {
		c.Limits.PlanningS, c.Limits.Wait = 2.5, c.Limits.Wait/4
		c.Setup.Limits = c.Limits.Told()
	})
	if code, body := r.ask("GET", "/v1/setup", ""); code != 200 || !strings.Contains(body, `"planning_s":2.5,"wait_s":7.5}`) {
		t.Errorf("%d %s", code, body)
	}
	r.submitted(1, 3)
	for path, want := range map[string]string{"7.5": "", "7.6": `want 0 to 7.5 seconds; see --max-wait`} {
		if code, body := r.ask("GET", "/v1/jobs/a/plans/1?wait_s="+path, ""); (code == 200) != (want == "") || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	for deadline, want := range map[string]string{"2.5": "", "2.6": `want 0 to 2.5 seconds; see --max-planning`} {
		if code, body := r.ask("POST", "/v1/plan", `{"lengths_tokens":[4],"deadline_s":`+deadline+`}`); (code == 200) != (want == "") || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", deadline, code, body)
		}
	}
}
