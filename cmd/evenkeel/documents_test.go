package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"reflect"
	"regexp"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

var update = flag.Bool("update", false, "write docs/documents.md anew; commit the changes only if you understand and want them")

// described are the documents that docs/documents.md describes, by the types that readers and
// writers use. Lines are those of a file with a line for each.
func described() []struct{ schema, what, root, lines string } {
	return []struct{ schema, what, root, lines string }{
		{"evenkeel.recording/v1", "What `calibrate` and `import` write: a header, then a line for each point", "profile.Header", "profile.Schedule profile.Point profile.Resume profile.End"},
		{"evenkeel.profile/v1", "What `fit` writes", "costmodel.Profile", ""},
		{"evenkeel.plan/v2", "What `solve` writes of one sequence", "solver.Plan", ""},
		{"evenkeel.batchplan/v1", "What `solve --lengths` writes", "solver/batch.Document", ""},
		{"evenkeel.pipelineplan/v1", "What `solve --lengths --pipeline` writes", "solver/pipeline.Document", ""},
		{"evenkeel.taskplan/v1", "What `solve --tasks` writes", "solver/multitask.Document", ""},
		{"evenkeel.tasks/v1", "What `solve --tasks` reads", "costmodel/multitask.Tasks", ""},
		{"evenkeel.trace/v1", "What `replay` writes: a header, then a line for each span and step of a rank", "replay.Header", "replay.Span replay.Step replay.End"},
		{"evenkeel.training/v1", "Whole training steps, which `fit --training` and `check` read", "fit.Training", ""},
		{"evenkeel.limits/v1", "The limits of `check`", "fit.Limits", ""},
		{"evenkeel.groupcost/v1", "A published cost model, which `--costs` takes", "costmodel/groupcost.Document", ""},
	}
}

// wires are the types that documents have in the place of others.
func wires() map[string]string {
	return map[string]string{
		"costmodel.Curve": "costmodel.curveWire", "costmodel.ChunkFactors": "costmodel.factorsWire", "costmodel.Field": "costmodel.fieldWire",
		"costmodel.wireElsewhere": "[]costmodel.unmeasuredWire", "costmodel.wireCounts": "text",
	}
}

// declared is a type of the project with the file that declares it.
type declared struct {
	spec    *ast.TypeSpec
	comment string
	pkg     string
	imports map[string]string // folder by the name that the file has for it
}

// schemas renders types as they stand in documents.
type schemas struct {
	t     *testing.T
	types map[string]declared // by folder.Name
	seen  map[string]bool
	queue []string
}

// read finds the types of a folder.
func (s *schemas) read(folder string) {
	dir := path.Join("../..", folder)
	files, err := os.ReadDir(dir)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, file := range files {
		if name := file.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			f, err := parser.ParseFile(token.NewFileSet(), path.Join(dir, name), nil, parser.ParseComments)
			if err != nil {
				s.t.Fatal(err)
			}
			imports := map[string]string{}
			for _, i := range f.Imports {
				full := strings.Trim(i.Path.Value, `"`)
				name := path.Base(full)
				if i.Name != nil {
					name = i.Name.Name
				}
				if own, ok := strings.CutPrefix(full, "github.com/evenkeel/evenkeel/"); ok {
					imports[name] = own
				}
			}
			for _, d := range f.Decls {
				g, ok := d.(*ast.GenDecl)
				if !ok || g.Tok != token.TYPE {
					continue
				}
				for _, spec := range g.Specs {
					x := spec.(*ast.TypeSpec)
					doc := x.Doc
					if doc == nil {
						doc = g.Doc
					}
					s.types[folder+"."+x.Name.Name] = declared{x, oneLine(doc), folder, imports}
				}
			}
		}
	}
	s.types[folder] = declared{}
}

// find is a type by its name.
func (s *schemas) find(name string) declared {
	folder := name[:strings.LastIndex(name, ".")]
	if _, ok := s.types[folder]; !ok {
		s.read(folder)
	}
	d, ok := s.types[name]
	if !ok {
		s.t.Fatalf("%s is not declared", name)
	}
	return d
}

// oneLine is a comment on one line.
func oneLine(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }

// kind is what a document has for a type: a number, a list, an object.
func (s *schemas) kind(from declared, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return s.kind(from, e.X)
	case *ast.ArrayType:
		return "list of " + s.kind(from, e.Elt)
	case *ast.MapType:
		return "object of " + s.kind(from, e.Value)
	case *ast.InterfaceType:
		return "any"
	case *ast.Ident:
		switch e.Name {
		case "string":
			return "text"
		case "bool":
			return "true or false"
		case "float64", "float32":
			return "number"
		case "any":
			return "any"
		}
		if strings.HasPrefix(e.Name, "int") || strings.HasPrefix(e.Name, "uint") || e.Name == "byte" {
			return "whole number"
		}
		return s.named(from.pkg + "." + e.Name)
	case *ast.SelectorExpr:
		folder, ok := from.imports[e.X.(*ast.Ident).Name]
		if !ok { // jsontext.Value
			return "any"
		}
		return s.named(folder + "." + e.Sel.Name)
	}
	s.t.Fatalf("%T of %s is in no document", e, from.pkg)
	return ""
}

// named is what a document has for a named type; an object is described in a table of its own.
func (s *schemas) named(name string) string {
	list := ""
	if wire, ok := wires()[name]; ok {
		if name = wire; wire == "text" {
			return wire
		}
		if own, ok := strings.CutPrefix(wire, "[]"); ok {
			list, name = "list of ", own
		}
	}
	d := s.find(name)
	if _, ok := d.spec.Type.(*ast.StructType); !ok {
		return s.kind(d, d.spec.Type)
	}
	if !s.seen[name] {
		s.seen[name] = true
		s.queue = append(s.queue, name)
	}
	return fmt.Sprintf("%s[%s](#%s)", list, path.Base(name), strings.NewReplacer(".", "", "/", "").Replace(strings.ToLower(name)))
}

// fields are the rows of a struct's table, those of embedded ones in their place.
func (s *schemas) fields(b *strings.Builder, name string) {
	d := s.find(name)
	list := d.spec.Type.(*ast.StructType).Fields.List
	for _, f := range list {
		key, options, _ := strings.Cut(tagOf(f), ",")
		if len(f.Names) == 0 && key == "" {
			if inner := s.embedded(d, f.Type); inner != "" {
				s.fields(b, inner)
			}
			continue
		}
		if key == "" || key == "-" {
			continue
		}
		said := byKeys(oneLine(cmp.Or(f.Doc, f.Comment)), f, list)
		if code := goSpoken.FindString(said); code != "" {
			s.t.Errorf("%s, %s: %q is Go's name of it: readers of documents know keys and flags", name, key, code)
		}
		optional := ""
		if strings.Contains(options, "omit") {
			optional = "may be left out"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", key, s.kind(d, f.Type), optional, strings.ReplaceAll(said, "|", `\|`))
	}
}

// goSpoken is a name with its owner as Go has it, such as Problem.Take or plan.inTwos.
var goSpoken = regexp.MustCompile(`\b[A-Za-z]+\.[A-Z]\w+|\b[A-Z]\w+\.[a-z]+[A-Z]\w*`)

// camel is a name of Go's.
var camel = regexp.MustCompile(`\b[A-Z]\w*[a-z]\w*`)

// tagOf is what a field's tag says of JSON.
func tagOf(f *ast.Field) string {
	if f.Tag == nil {
		return ""
	}
	return reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json")
}

// byKeys is a field's comment with keys in the place of Go's names: of the field where it begins
// with it, and of the others beside it where no word could be meant.
func byKeys(said string, of *ast.Field, beside []*ast.Field) string {
	keys := map[string]string{}
	for _, f := range beside {
		if key, _, _ := strings.Cut(tagOf(f), ","); key != "" && key != "-" && len(f.Names) > 0 {
			keys[f.Names[0].Name] = "`" + key + "`"
		}
	}
	if len(of.Names) > 0 {
		own := of.Names[0].Name
		if rest, ok := strings.CutPrefix(said, own); ok && (strings.HasPrefix(rest, " ") || strings.HasPrefix(rest, ",")) {
			said = keys[own] + rest
		}
	}
	return camel.ReplaceAllStringFunc(said, func(name string) string {
		if strings.ToLower(name[1:]) == name[1:] { // it may be a word
			return name
		}
		return cmp.Or(keys[name], name)
	})
}

// embedded is the struct that a field without a name is, if it is the project's.
func (s *schemas) embedded(d declared, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return d.pkg + "." + e.Name
	case *ast.SelectorExpr:
		if folder, ok := d.imports[e.X.(*ast.Ident).Name]; ok {
			return folder + "." + e.Sel.Name
		}
	}
	return ""
}

// table describes a type, and nothing of those it has.
func (s *schemas) table(b *strings.Builder, name, title string) {
	d := s.find(name)
	fmt.Fprintf(b, "\n%s\n\n%s\n\n| key | value | | meaning |\n| --- | --- | --- | --- |\n", title, d.comment)
	s.fields(b, name)
}

// docs/documents.md describes every document by the types that read and write it.
func TestDocumentsArePaged(t *testing.T) {
	s := &schemas{t: t, types: map[string]declared{}, seen: map[string]bool{}}
	var b strings.Builder
	b.WriteString(`# Documents

Every file that evenkeel writes is JSON, or JSON of a line each, with a schema and a version, and is
read strictly: a key that a version does not know or a number out of range is an error with file, line or
field, and the way out. Tables mark what may be left out. Any other key that is missing reads as 0, false or
none, which is an error where that is out of range, as it mostly is; documents that are written by hand do
without ` + "`tool` and `created`" + `. What stays compatible is said in the
[README](../README.md), what changed in the [CHANGELOG](../CHANGELOG.md). Keys end in their unit.
` + "`cluster.yaml`" + ` (` + "`evenkeel.cluster/v1`" + `) is described in [unequal-gpus.md](unequal-gpus.md), the API of ` + "`serve`" + ` in its
` + "`/openapi.yaml`" + `.

This page is made from the types that read and write the documents
(` + "`go test ./cmd/evenkeel -run Documents -update`" + `): its words are theirs.

`)
	for _, d := range described() {
		anchor := strings.NewReplacer(".", "", "/", "").Replace(d.schema)
		fmt.Fprintf(&b, "- [%s](#%s): %s\n", d.schema, anchor, strings.ToLower(d.what[:1])+d.what[1:])
	}
	b.WriteString("- [shapes](#shapes) of ops in recordings\n")
	for _, d := range described() {
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n", d.schema, d.what)
		s.seen[d.root] = true
		s.table(&b, d.root, "### "+d.root)
		for _, line := range strings.Fields(d.lines) {
			s.seen[line] = true
			s.table(&b, line, "### "+line)
		}
		for len(s.queue) > 0 {
			next := s.queue[0]
			s.queue = s.queue[1:]
			s.table(&b, next, "### "+next)
		}
	}
	b.WriteString("\n## Shapes\n\nWhat `shape` has in recordings, by `op`.\n")
	for _, spec := range op.Table() {
		name := "costmodel/op." + reflect.TypeOf(spec.Example).Name()
		fmt.Fprintf(&b, "\n### %s\n\n%s.\n\n| key | value | | meaning |\n| --- | --- | --- | --- |\n", spec.Kind, strings.TrimSuffix(spec.Doc, "."))
		s.fields(&b, name)
	}
	const page = "../../docs/documents.md"
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(have), b.String()); diff != "" {
		t.Errorf("%s is of other types (-update writes it anew): %.3000s", page, diff)
	}
}
