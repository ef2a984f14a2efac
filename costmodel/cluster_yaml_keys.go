package costmodel

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/evenkeel/evenkeel/internal/spelling"
)

// yamlValue is what stands at a place of cluster.yaml. The library's own errors tell
// neither the field nor the value, and name types of Go.
type yamlValue struct {
	want string               // in words
	fits func(n ast.Node) any // the value, nil of one that does not do; of a scalar
	keys []yamlKey            // of a mapping
	each *yamlValue           // of a list
}

type yamlKey struct {
	name  string
	value *yamlValue
}

var (
	yamlName = &yamlValue{want: "a name", fits: func(n ast.Node) any {
		switch n.(type) {
		case *ast.StringNode, *ast.LiteralNode, *ast.IntegerNode, *ast.BoolNode:
			return n
		}
		return nil
	}}
	yamlCount = &yamlValue{want: "a whole number", fits: whole}
	yamlCards = &yamlValue{want: "the number of network cards that the devices share, or leave it out for one a device", fits: func(n ast.Node) any {
		if v := whole(n); v != 0 { // 0 in a Node says that nothing was given
			return v
		}
		return nil
	}}
	yamlRate    = &yamlValue{want: "a number, such as 200e9 for 200 GB/s", fits: numeric}
	yamlLatency = &yamlValue{want: "a number, such as 3e-6 for 3 microseconds", fits: numeric}

	yamlCluster = mapping("schema", yamlName, "network", yamlName,
		"links", listOf(mapping("name", yamlName, "bytes_per_s", yamlRate, "latency_s", yamlLatency)),
		"nodes", listOf(mapping("name", yamlName, "link", yamlName, "nics", yamlCards,
			"devices", listOf(mapping("device", yamlName, "count", yamlCount)))))
)

// mapping is a value of keys, each followed by what it holds.
func mapping(keysAndValues ...any) *yamlValue {
	v := &yamlValue{}
	var names []string
	for i := 0; i < len(keysAndValues); i += 2 {
		k := yamlKey{keysAndValues[i].(string), keysAndValues[i+1].(*yamlValue)}
		v.keys, names = append(v.keys, k), append(names, k.name)
	}
	v.want = fmt.Sprintf("keys with values: {%s: ...}", strings.Join(names, ": ..., "))
	return v
}

func listOf(each *yamlValue) *yamlValue {
	return &yamlValue{want: "a list of " + each.want, each: each}
}

// whole is the value of a whole number, nil of anything else: the library would cut 4.5
// devices down to 4.
func whole(n ast.Node) any {
	switch n := n.(type) {
	case *ast.IntegerNode:
		switch v := n.Value.(type) {
		case int64:
			return int(v)
		case uint64:
			if v <= math.MaxInt {
				return int(v)
			}
		}
	case *ast.StringNode: // in quotes, and numbers such as 1e3
		if v, err := strconv.ParseFloat(n.Value, 64); err == nil && v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return int(v)
		}
	}
	return nil
}

// numeric is the value of a finite number, nil of anything else. To the library 200e9 is
// a string.
func numeric(n ast.Node) any {
	switch n := n.(type) {
	case *ast.FloatNode:
		return n.Value
	case *ast.StringNode:
		if v, err := strconv.ParseFloat(n.Value, 64); err == nil && !math.IsInf(v, 0) && !math.IsNaN(v) {
			return v
		}
		return nil
	}
	return whole(n)
}

// yamlLines tells in which line the value of a field stands.
type yamlLines map[string]int

// of is the line of a field, or else of what it would be in; 0 if that is not there either.
func (l yamlLines) of(path string) int {
	for path != "" {
		if line := l[path]; line > 0 {
			return line
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return 0
}

// check refuses a node of which the library would say only what type of Go it is not, and
// notes its lines. What is empty counts as left out.
func (v *yamlValue) check(name, path string, n ast.Node, lines yamlLines) error {
	lines[path] = lineOf(n)
	switch n := n.(type) {
	case nil, *ast.NullNode:
		return nil
	case *ast.SequenceNode:
		if v.each == nil {
			break
		}
		for i, element := range n.Values {
			if err := v.each.check(name, fmt.Sprintf("%s[%d]", path, i), element, lines); err != nil {
				return err
			}
		}
		return nil
	case *ast.MappingNode:
		if v.keys != nil {
			return v.entries(name, path, n.Values, lines)
		}
	case *ast.MappingValueNode:
		if v.keys != nil {
			return v.entries(name, path, []*ast.MappingValueNode{n}, lines)
		}
	default:
		if v.fits != nil && v.fits(n) != nil {
			return nil
		}
	}
	err := fmt.Errorf("%s: %s: %s: want %s", at(name, n), path, spelt(n), v.want)
	if v == yamlCards && whole(n) != nil {
		return &ContradictionError{err}
	}
	return err
}

// entries checks the entries of a mapping.
func (v *yamlValue) entries(name, path string, entries []*ast.MappingValueNode, lines yamlLines) error {
	var known []string
	for _, k := range v.keys {
		known = append(known, k.name)
	}
	place, before := "", ""
	if path != "" {
		place, before = path+": ", path+"."
	}
	for _, e := range entries {
		key := keyOf(e)
		i := slices.Index(known, key)
		if i < 0 {
			return fmt.Errorf("%s: %sunknown key %.60q%s; the keys there are %s", at(name, e.Key), place, key, spelling.Hint(key, known), strings.Join(known, ", "))
		}
		if err := v.keys[i].value.check(name, before+key, e.Value, lines); err != nil {
			return err
		}
	}
	return nil
}

// spelt is a value as a message tells it.
func spelt(n ast.Node) string {
	switch n := n.(type) {
	case *ast.StringNode:
		if n.Value != "" && strings.Trim(n.Value, "0123456789") == "" { // more than the library takes for a number
			return fmt.Sprintf("%.40s", n.Value)
		}
		return fmt.Sprintf("%.60q", n.Value)
	case *ast.LiteralNode:
		return fmt.Sprintf("%.60q", n.Value.Value)
	case nil, *ast.NullNode:
		return "empty"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys with values"
	}
	return fmt.Sprintf("%.40s", n.String())
}

func lineOf(n ast.Node) int {
	if n == nil {
		return 0
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}

// located puts file and, where the error begins with a field, its line before the error of
// a cluster.
func (l yamlLines) located(name string, err error) error {
	path, _, _ := strings.Cut(err.Error(), ": ")
	if line := l.of(path); line > 0 {
		return fmt.Errorf("%s:%d: %w", name, line, err)
	}
	return fmt.Errorf("%s: %w", name, err)
}

// syntaxError puts the library's message behind file and line, with what stands there.
func syntaxError(name string, data []byte, e interface{ GetMessage() string }, line int) error {
	text := ""
	if all := strings.Split(string(data), "\n"); line > 0 && line <= len(all) {
		text = strings.TrimRight(all[line-1], "\r")
	}
	var key string
	var first, column int
	if _, err := fmt.Sscanf(e.GetMessage(), "mapping key %q already defined at [%d:%d]", &key, &first, &column); err == nil {
		if key == "?" { // what stands before a key that is written out
			key = strings.Trim(text, "- \t?")
		}
		return fmt.Errorf("%s:%d: %.60s: is there twice, before in line %d: leave one out", name, line, key, first)
	}
	return fmt.Errorf("%s:%d: %.60q: is no YAML: %w; look at the indentation there and above, which is of spaces, and at brackets and quotes", name, line, text, errors.New(e.GetMessage()))
}
