package costmodel

import (
	"errors"
	"fmt"

	"github.com/goccy/go-yaml/parser"
)

// FieldError is the error of a field of a cluster that is well-formed and wrong for a
// profile: what a file of the cluster says there may be told with its line (InClusterFile).
type FieldError struct {
	Field string // such as nodes[1].link
	Err   error
}

// Error is that of the field, without its name: who reads a shorthand knows none.
func (e *FieldError) Error() string { return e.Err.Error() }

// Unwrap gives what is wrong.
func (e *FieldError) Unwrap() error { return e.Err }

// ContradictionError is that of a file of a cluster which is well-formed and contradicts itself or
// what a cluster can be: a node of no devices, two of one name, a link of two rates.
type ContradictionError struct {
	Err error // begins with file and, where there is one, line
}

// Error names file, line and field, with what would do.
func (e *ContradictionError) Error() string { return e.Err.Error() }

// Unwrap gives what is wrong.
func (e *ContradictionError) Unwrap() error { return e.Err }

// InClusterFile puts the file that a cluster was read from before an error of it, and the
// line where the error is of a field that stands there: one that a flag filled in does not.
func InClusterFile(name string, data []byte, err error) error {
	var of *FieldError
	if errors.As(err, &of) {
		if line := linesOf(data)[of.Field]; line > 0 {
			return fmt.Errorf("%s:%d: %w", name, line, err)
		}
	}
	return fmt.Errorf("%s: %w", name, err)
}

// linesOf are those of a cluster.yaml that was read before.
func linesOf(data []byte) yamlLines {
	lines := yamlLines{}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil
	}
	body, err := checkYAMLTree("", file)
	if err != nil || yamlCluster.check("", "", body, lines) != nil {
		return nil
	}
	return lines
}
