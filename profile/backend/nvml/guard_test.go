//go:build cgo && linux

package nvml

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// source is the calls and the string constants of this package's Go files.
func source(t *testing.T) (calls, texts map[string]bool) {
	t.Helper()
	calls, texts = map[string]bool{}, map[string]bool{}
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if s, ok := n.Fun.(*ast.SelectorExpr); ok {
					calls[s.Sel.Name] = true
				}
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					texts[text] = true
				}
			}
			return true
		})
	}
	return calls, texts
}

// TestEveryCallIsLookedForFirst: the C function behind each method of the
// binding that is called here is among the names that are looked up, because a
// call of one that the library lacks ends the process. The binding names its
// methods after the functions.
func TestEveryCallIsLookedForFirst(t *testing.T) {
	calls, texts := source(t)
	ofDevice, ofLibrary := regexp.MustCompile(`^Get[A-Z]`), regexp.MustCompile(`^(Device|System)Get[A-Z]`)
	checked := 0
	for name := range calls {
		symbol := ""
		switch {
		case ofDevice.MatchString(name):
			symbol = "nvmlDevice" + name
		case ofLibrary.MatchString(name):
			symbol = "nvml" + name
		default:
			continue
		}
		checked++
		if !texts[symbol] && !texts[symbol+"_v2"] {
			t.Errorf("%s is called, but %s is not looked for", name, symbol)
		}
	}
	if checked < 30 {
		t.Errorf("only %d calls of the binding were found", checked)
	}
}

// TestNothingIsEverChanged: neither a function that is looked for nor a method
// that is called changes a setting.
func TestNothingIsEverChanged(t *testing.T) {
	calls, texts := source(t)
	changing := regexp.MustCompile(`^(nvml)?(Device|System|Gpu|Unit|Vgpu)?(Set|Reset|Clear|Create|Destroy|Freeze|Modify|Remove|Discover|Power|Register|Control)([A-Z]|$)`)
	for _, names := range []map[string]bool{calls, texts} {
		for name := range names {
			if changing.MatchString(name) {
				t.Errorf("%s changes a machine that is only to be read", name)
			}
		}
	}
	if changing.MatchString("nvmlDeviceGetPowerUsage") || !changing.MatchString("nvmlDeviceSetPersistenceMode") || !changing.MatchString("ResetGpuLockedClocks") {
		t.Error("the pattern tells nothing")
	}
}
