package costmodel

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Limits of a cluster.yaml. A node takes about 60 bytes; the schema is four
// levels deep. They keep the library's recursion harmless.
const (
	maxClusterFile  = 1 << 20
	maxClusterDepth = 64
)

// clusterFile is the schema evenkeel.cluster/v1.
type clusterFile struct {
	Schema  string      `yaml:"schema"`
	Network string      `yaml:"network"`
	Links   []linkEntry `yaml:"links"`
	Nodes   []Node      `yaml:"nodes"`
}

// linkEntry is a Link in plain numbers: the library cannot set others.
type linkEntry struct {
	Name    string  `yaml:"name"`
	Rate    float64 `yaml:"bytes_per_s"`
	Latency float64 `yaml:"latency_s"`
}

func (f clusterFile) cluster() Cluster {
	c := Cluster{Nodes: f.Nodes, Network: f.Network}
	for _, l := range f.Links {
		c.Links = append(c.Links, Link{Name: l.Name, Rate: units.BytesPerS(l.Rate), Latency: units.Seconds(l.Latency)})
	}
	return c
}

// ReadClusterYAML reads a cluster.yaml:
//
//	schema: evenkeel.cluster/v1
//	network: roce            # link class between nodes; may be left out, see Resolve
//	links:                   # classes that nobody measured, at their datasheet's rate
//	  - {name: nvlink_a800, bytes_per_s: 200e9, latency_s: 3e-6}  # the latency may be left out
//	nodes:
//	  - name: n0
//	    link: nvlink         # link class inside the node; may be left out
//	    nics: 4              # network cards that the devices share; left out: one a device
//	    devices:
//	      - {device: h100_sxm, count: 8}
//
// It is strict: the schema comes first, unknown and repeated keys are refused,
// and so are anchors, aliases, tags and second documents, which a file of this
// kind does not need. Errors begin with name and, where there is one, the line; that of a file
// which is well-formed and states what no cluster can be is a *ContradictionError.
func ReadClusterYAML(name string, data []byte) (Cluster, error) {
	if what, do := doc.WholeFile(data); do != "" {
		return Cluster{}, fmt.Errorf("%s: %s; %s", name, what, do)
	}
	if err := checkYAMLSize(data); err != nil {
		return Cluster{}, fmt.Errorf("%s: %w", name, err)
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return Cluster{}, yamlError(name, data, err)
	}
	body, err := checkYAMLTree(name, file)
	if err != nil {
		return Cluster{}, err
	}
	lines := yamlLines{}
	if err := yamlCluster.check(name, "", body, lines); err != nil {
		return Cluster{}, err
	}
	var f clusterFile
	if err := yaml.NodeToValue(body, &f, yaml.Strict()); err != nil {
		return Cluster{}, yamlError(name, data, err)
	}
	c := f.cluster()
	if err := c.Validate(); err != nil {
		return Cluster{}, &ContradictionError{lines.located(name, err)}
	}
	return c, nil
}

// checkYAMLSize refuses, before the parser sees it, what would make it recurse
// too deep: every level of nesting costs an opening bracket or a mark at the
// beginning of a line.
func checkYAMLSize(data []byte) error {
	if len(data) > maxClusterFile {
		return fmt.Errorf("%d bytes: a cluster.yaml has at most %d", len(data), maxClusterFile)
	}
	open := 0
	for i, line := range strings.Split(string(data), "\n") {
		open += strings.Count(line, "[") + strings.Count(line, "{") - strings.Count(line, "]") - strings.Count(line, "}")
		marks := len(line) - len(strings.TrimLeft(line, " \t-?:!&*|>'\"[{"))
		if open > maxClusterDepth || marks > maxClusterDepth || strings.Count(line, "[")+strings.Count(line, "{") > maxClusterDepth {
			return fmt.Errorf("line %d: nested deeper than %d levels; a cluster.yaml needs four", i+1, maxClusterDepth)
		}
	}
	return nil
}

// checkYAMLTree is the body of the file's only document, if that may be a cluster.yaml.
func checkYAMLTree(name string, file *ast.File) (ast.Node, error) {
	docs := documents(file)
	if len(docs) == 0 {
		return nil, fmt.Errorf("%s: no YAML document: want one, beginning with schema: %s", name, ClusterSchema)
	}
	if len(docs) != 1 {
		return nil, fmt.Errorf("%s: %d YAML documents: want one, beginning with schema: %s", name, len(docs), ClusterSchema)
	}
	body := docs[0]
	first, schema := firstEntry(body)
	value := ""
	if s, ok := schema.(*ast.StringNode); ok {
		value = s.Value
	}
	switch {
	case first != "schema":
		return nil, fmt.Errorf("%s: begins with %.40q: the first line must be schema: %s", at(name, body), first, ClusterSchema)
	case value != ClusterSchema:
		return nil, fmt.Errorf("%s: schema: %s: want %s", at(name, body), spelt(schema), ClusterSchema)
	}
	var v yamlVisitor
	ast.Walk(&v, body)
	if v.found != nil {
		return nil, fmt.Errorf("%s: %.40q: anchors, aliases and tags are not used in a cluster.yaml; write the entry out", at(name, v.found), v.found.String())
	}
	return body, nil
}

// documents are the bodies of those that hold anything. The library counts a %YAML line as one,
// and so what follows a last ---.
func documents(file *ast.File) (bodies []ast.Node) {
	for _, d := range file.Docs {
		if of, ok := d.Body.(*ast.DirectiveNode); d.Body == nil || ok && of.Name != nil && of.Name.String() == "YAML" {
			continue
		}
		bodies = append(bodies, d.Body)
	}
	return bodies
}

func firstEntry(body ast.Node) (key string, value ast.Node) {
	var kv *ast.MappingValueNode
	switch n := body.(type) {
	case *ast.MappingNode:
		if len(n.Values) > 0 {
			kv = n.Values[0]
		}
	case *ast.MappingValueNode:
		kv = n
	}
	if kv == nil {
		return body.GetToken().Value, nil
	}
	return keyOf(kv), kv.Value
}

// keyOf is the key of an entry, which may be written out: ? name.
func keyOf(kv *ast.MappingValueNode) string {
	if k, ok := kv.Key.(*ast.MappingKeyNode); ok && k.Value != nil {
		return k.Value.GetToken().Value
	}
	return kv.Key.GetToken().Value
}

// yamlVisitor finds the first node of a kind we refuse.
type yamlVisitor struct{ found ast.Node }

// Visit implements ast.Visitor.
func (v *yamlVisitor) Visit(n ast.Node) ast.Visitor {
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode, *ast.DirectiveNode:
		if v.found == nil {
			v.found = n
		}
	}
	if v.found != nil {
		return nil
	}
	return v
}

func at(name string, n ast.Node) string {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return fmt.Sprintf("%s:%d", name, t.Position.Line)
	}
	return name
}

// yamlError puts the library's message behind file and line, without its
// excerpt of the source.
func yamlError(name string, data []byte, err error) error {
	var e yaml.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("%s: %w", name, err)
	}
	if t := e.GetToken(); t != nil && t.Position != nil {
		return syntaxError(name, data, e, t.Position.Line)
	}
	return fmt.Errorf("%s: %s", name, e.GetMessage())
}
