package structure

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/evenkeel/evenkeel"

// allowed says what each part of the house may import of the others. A part is
// a folder with all below it; the longest that matches a package counts. This
// table is the design: measuring never knows predicting, predicting never
// knows measuring or solving, and nothing imports the commands. Of the planner's
// packages the contract and the lower bound know no strategy, no strategy knows one
// that is solved after it, and made-up worlds are for tests only.
var allowed = map[string][]string{
	"internal/units":               {},
	"internal/stats":               {},
	"internal/spelling":            {},
	"internal/ended":               {},
	"internal/doc":                 {"internal/spelling"},
	"internal/structure":           {},
	"internal/keyed":               {"profile"},
	"internal/reference":           {"fit", "results/profiles", "costmodel", "costmodel/op", "internal/units"},
	"costmodel/op":                 {"internal/units", "internal/spelling"},
	"costmodel":                    {"costmodel/op", "internal/units", "internal/doc", "internal/spelling"},
	"costmodel/groupcost":          {"costmodel", "costmodel/op", "internal/units", "internal/doc"},
	"costmodel/multitask":          {"costmodel", "costmodel/op", "internal/units", "internal/doc", "internal/spelling"},
	"costmodel/pipeline":           {"costmodel", "costmodel/op", "internal/units"},
	"costmodel/workload":           {"internal/units", "internal/doc", "internal/spelling"},
	"costmodel/topology":           {"costmodel", "costmodel/op", "internal/units"},
	"profile":                      {"costmodel/op", "internal/units", "internal/stats", "internal/doc"},
	"profile/importer":             {"profile", "costmodel/op", "internal/units", "internal/stats", "internal/doc", "internal/spelling"},
	"profile/backend/child":        {},
	"profile/backend/cpu":          {"profile", "profile/backend/child", "profile/backend/host", "profile/backend/cpu", "costmodel/op", "internal/units"},
	"profile/backend/host":         {"profile", "internal/units"},
	"profile/backend/nvml":         {"profile", "internal/units"},
	"profile/backend/recorded":     {"profile", "costmodel/op", "internal/units"},
	"profile/backend/sim":          {"profile", "costmodel/op", "internal/units"},
	"profile/backend/torch":        {"profile", "profile/backend/child", "profile/backend/host", "profile/backend/torch/launch", "costmodel/op", "internal/units"},
	"profile/backend/torch/launch": {"internal/units"},
	"fit":                          {"costmodel", "costmodel/op", "profile", "internal/units", "internal/stats", "internal/doc", "internal/spelling"},
	"solver/milp":                  {},
	"solver/recommend":             {"costmodel", "internal/units", "internal/spelling"},
	"solver/batch":                 {"solver/recommend", "costmodel", "costmodel/groupcost", "costmodel/workload", "solver/milp", "internal/units", "internal/doc", "internal/ended"},
	"solver/multitask":             {"solver/recommend", "costmodel/multitask", "internal/units", "internal/doc", "internal/ended"},
	"solver/pipeline":              {"solver/recommend", "solver/milp", "costmodel", "costmodel/pipeline", "costmodel/workload", "internal/units", "internal/doc", "internal/ended"},
	"solver/internal/strategy":     {"costmodel", "costmodel/op", "internal/units", "internal/ended"},
	"solver/internal/world":        {"solver/internal/strategy", "internal/reference", "costmodel", "costmodel/op", "internal/units"},
	"solver/internal/analytic":     {"solver/internal/strategy", "costmodel", "costmodel/op", "internal/units"},
	"solver/internal/baseline":     {"solver/internal/strategy", "solver/internal/analytic", "costmodel", "internal/units"},
	"solver/internal/hexiseq":      {"solver/internal/strategy", "solver/internal/analytic", "solver/internal/baseline", "costmodel", "internal/units"},
	"solver/internal/evenkeel":     {"solver/internal/strategy", "solver/internal/analytic", "costmodel", "costmodel/op", "internal/units", "internal/ended"},
	"solver/internal/bound":        {"costmodel", "costmodel/op", "internal/units"},
	"solver":                       {"solver/internal/strategy", "solver/internal/bound", "solver/internal/evenkeel", "solver/internal/hexiseq", "solver/internal/baseline", "solver/internal/analytic", "solver/recommend", "costmodel", "costmodel/op", "internal/units", "internal/doc"},
	"solver/emit":                  {"solver", "solver/pipeline", "costmodel", "costmodel/op", "costmodel/pipeline", "internal/units"},
	"serve":                        {"solver/batch", "costmodel", "costmodel/pipeline", "internal/units", "internal/doc"},
	"python":                       {},
	"replay/comparison":            {"replay", "fit", "costmodel", "costmodel/multitask", "costmodel/pipeline", "internal/units", "internal/stats"},
	"replay":                       {"python", "solver", "solver/batch", "solver/multitask", "solver/pipeline", "costmodel/multitask", "costmodel/pipeline", "profile/backend/child", "profile/backend/torch", "profile/backend/torch/launch", "costmodel", "costmodel/op", "internal/units", "internal/doc"},
	"results/profiles":             {"costmodel", "costmodel/op", "costmodel/groupcost", "internal/doc", "internal/spelling"},
	"results":                      {"results/profiles", "replay", "replay/comparison", "solver", "solver/emit", "solver/batch", "solver/multitask", "solver/pipeline", "solver/recommend", "costmodel/multitask", "costmodel/pipeline", "costmodel/groupcost", "costmodel/workload", "fit", "profile", "costmodel", "costmodel/op", "internal/units", "internal/stats", "internal/doc"},
	"cmd/evenkeel": {
		"results", "results/profiles", "replay", "solver", "fit", "profile", "profile/importer", "profile/backend/cpu", "profile/backend/host", "profile/backend/nvml",
		"profile/backend/recorded", "profile/backend/sim", "profile/backend/torch", "profile/backend/torch/launch", "costmodel", "costmodel/op", "costmodel/topology", "costmodel/groupcost", "costmodel/workload", "replay/comparison", "internal/spelling", "internal/units", "internal/doc", "internal/ended", "serve", "solver/emit", "solver/batch", "solver/multitask", "solver/pipeline", "solver/recommend", "costmodel/multitask", "costmodel/pipeline",
	},
}

// outside lists who may touch files, clocks or processes.
var outside = []string{"internal/doc", "profile/backend", "solver/milp", "serve", "replay", "cmd"}

// file is a Go source file of the project.
type file struct {
	path, pkg string // relative to the root, with slashes
	test      bool
	ast       *ast.File
	lines     int
}

func sources(t *testing.T) []file {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var files []file
	fset := token.NewFileSet()
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "tools") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(fset, path, data, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		rel = filepath.ToSlash(rel)
		files = append(files, file{
			path: rel, pkg: filepath.ToSlash(filepath.Dir(rel)), test: strings.HasSuffix(name, "_test.go"),
			ast: parsed, lines: strings.Count(string(data), "\n"),
		})
		return nil
	})
	if err != nil || len(files) < 20 {
		t.Fatal(len(files), err)
	}
	return files
}

// part finds the entry of allowed that a package belongs to.
func part(pkg string) (string, bool) {
	best, found := "", false
	for p := range allowed {
		if (pkg == p || strings.HasPrefix(pkg, p+"/")) && len(p) > len(best) {
			best, found = p, true
		}
	}
	return best, found
}

func imports(f file) []string {
	var paths []string
	for _, i := range f.ast.Imports {
		paths = append(paths, strings.Trim(i.Path.Value, `"`))
	}
	return paths
}

func TestImportsFollowTheDesign(t *testing.T) {
	used := map[string]bool{}
	for _, f := range sources(t) {
		from, ok := part(f.pkg)
		if !ok {
			t.Errorf("%s: package %s is in no part of the house; add it to the table of this test and to the design", f.path, f.pkg)
			continue
		}
		if f.test {
			continue // a test may play both sides
		}
		for _, path := range imports(f) {
			rel, ours := strings.CutPrefix(path, module+"/")
			if !ours {
				continue
			}
			to, _ := part(rel)
			used[from+" "+to] = true
			if to != from && !slices.Contains(allowed[from], to) {
				t.Errorf("%s: %s must not import %s", f.path, from, to)
			}
		}
	}
	for from, all := range allowed {
		for _, to := range all {
			if !used[from+" "+to] {
				t.Errorf("%s may import %s and does not: take it off the table", from, to)
			}
		}
	}
}

func TestOnlyTheEdgesTouchTheOutside(t *testing.T) {
	forbidden := []string{"os", "os/exec", "os/signal", "syscall", "net", "net/http", "crypto/rand", "golang.org/x/sys/unix"}
	for _, f := range sources(t) {
		if f.test || slices.ContainsFunc(outside, func(p string) bool { return strings.HasPrefix(f.pkg, p) }) {
			continue
		}
		for _, path := range imports(f) {
			if slices.Contains(forbidden, path) {
				t.Errorf("%s: imports %s; files, clocks and processes belong to %v", f.path, path, outside)
			}
		}
		for _, got := range impure(f) {
			t.Errorf("%s: %s; take the clock, the deadline or the seed as an input", f.path, got)
		}
	}
}

// clocks are the functions that read one or wait for it. A limit of time reads it too, to know
// when it is over; a deadline that is given does not, but ends work by the clock all the same.
var clocks = map[string][]string{
	"time":    {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
	"context": {"WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause"},
}

// limits are the packages outside the edges whose purpose is to limit others by time.
var limits = map[string][]string{
	"internal/ended": {"WithTimeoutCause"},
	"profile":        {"WithDeadline", "WithDeadlineCause"}, // at a time by the clock that it is given
}

// seeded are what math/rand has without a generator of its own, which nobody seeded.
var seeded = []string{"New", "NewSource", "NewPCG", "NewChaCha8", "NewZipf", "Rand", "Source", "Source64", "PCG", "ChaCha8", "Zipf"}

// impure are the names of a file that make its results depend on more than its inputs.
func impure(f file) (all []string) {
	packages := map[string]string{}
	for _, i := range f.ast.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		name := filepath.Base(strings.TrimSuffix(path, "/v2"))
		if i.Name != nil {
			name = i.Name.Name
		}
		packages[name] = path
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := s.X.(*ast.Ident)
		if !ok {
			return true
		}
		path := packages[x.Name]
		clock := slices.Contains(clocks[path], s.Sel.Name) && !slices.Contains(limits[f.pkg], s.Sel.Name)
		chance := strings.HasPrefix(path, "math/rand") && !slices.Contains(seeded, s.Sel.Name)
		if clock || chance {
			all = append(all, path+"."+s.Sel.Name)
		}
		return true
	})
	return all
}

func TestImpureNamesAreFound(t *testing.T) {
	for text, want := range map[string]string{
		"import \"time\"\nvar _ = <-time.NewTimer(time.Second).C":                              "time.NewTimer",
		"import \"time\"\nvar _ = time.Until(time.Time{})":                                     "time.Until",
		"import clock \"time\"\nvar _ = clock.Now":                                             "time.Now",
		"import \"context\"\nvar _, _ = context.WithTimeout(context.Background(), 1)":          "context.WithTimeout",
		"import \"math/rand\"\nvar _ = rand.Int()":                                             "math/rand.Int",
		"import \"math/rand/v2\"\nvar _ = rand.N(3)":                                           "math/rand/v2.N",
		"import \"math/rand/v2\"\nvar r *rand.Rand = rand.New(rand.NewPCG(1, 2))":              "",
		"import \"time\"\nvar _ = time.Duration(time.Second)":                                  "",
		"var rand struct{ Int func() int }\nvar _ = rand.Int()":                                "",
		"import \"context\"\nfunc f(ctx context.Context) (int, int) { return ctx.Deadline() }": "",
	} {
		parsed, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(impure(file{pkg: "costmodel", ast: parsed}), ", "); got != want {
			t.Errorf("%s: found %q, want %q", text, got, want)
		}
	}
}

func TestNoInitAndOneExit(t *testing.T) {
	exits := 0
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == "init" && fn.Recv == nil {
				t.Errorf("%s: has an init function", f.path)
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && (x.Name == "os" && s.Sel.Name == "Exit" || x.Name == "log" && strings.HasPrefix(s.Sel.Name, "Fatal")) {
					exits++
				}
			}
			return true
		})
	}
	if exits != 1 {
		t.Errorf("%d exits: want exactly one, in main", exits)
	}
}

func TestEveryExportedNameIsDocumented(t *testing.T) {
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) {
					t.Errorf("%s: %s has no doc comment", f.path, d.Name.Name)
				}
			case *ast.GenDecl:
				undocumented(t, f, d)
			}
		}
	}
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	if s, ok := typ.(*ast.StarExpr); ok {
		typ = s.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}

func undocumented(t *testing.T, f file, d *ast.GenDecl) {
	for _, s := range d.Specs {
		switch s := s.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
				t.Errorf("%s: type %s has no doc comment", f.path, s.Name.Name)
			}
		case *ast.ValueSpec:
			for _, n := range s.Names {
				if n.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
					t.Errorf("%s: %s has no doc comment", f.path, n.Name)
				}
			}
		}
	}
}

// One package suggests names that were perhaps meant, so that all messages read alike.
func TestSuggestionsComeFromSpelling(t *testing.T) {
	for _, f := range sources(t) {
		if f.test || f.pkg == "internal/spelling" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.BasicLit); ok && strings.Contains(s.Value, "did you mean") {
				t.Errorf("%s: asks what was meant: let spelling.Suggest do it", f.path)
			}
			return true
		})
	}
}

func TestFilesHoldOneIdea(t *testing.T) {
	for _, f := range sources(t) {
		if f.lines > 600 {
			t.Errorf("%s: %d lines; split it", f.path, f.lines)
		}
		for _, name := range []string{"utils", "common", "types", "helpers", "pkg", "util", "misc"} {
			if slices.Contains(strings.Split(f.pkg, "/"), name) {
				t.Errorf("%s: a package is one noun a reader can guess, not %q", f.path, name)
			}
		}
	}
}

func TestContributingListsThePackages(t *testing.T) {
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range sources(t) {
		if !f.test && !seen[f.pkg] {
			seen[f.pkg] = true
			if !strings.Contains(string(page), "`"+f.pkg+"`") {
				t.Errorf("CONTRIBUTING.md does not name `%s`", f.pkg)
			}
		}
	}
}
