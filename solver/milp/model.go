package milp

import (
	"fmt"
	"math"
)

// Model is a programme: minimise Σ Cost x subject to the rows and bounds.
type Model struct {
	Columns []Column
	Rows    []Row
}

// Column is a variable.
type Column struct {
	Cost         float64
	Lower, Upper float64 // math.Inf where there is none
	Integer      bool
}

// Row is a constraint: Lower ≤ Σ Value x ≤ Upper.
type Row struct {
	Lower, Upper float64 // math.Inf where there is none
	Terms        []Term
}

// Term is one coefficient of a row.
type Term struct {
	Column int
	Value  float64
}

// maxSize is the most columns, rows or terms: beyond it the engine's 2 GiB of
// memory would not do.
const maxSize = 1 << 23

// Validate reports the first field that is out of range.
func (m *Model) Validate() error {
	if len(m.Columns) == 0 || len(m.Columns) > maxSize || len(m.Rows) > maxSize {
		return fmt.Errorf("model: %d columns, %d rows: want 1 to %d columns, at most %d rows", len(m.Columns), len(m.Rows), maxSize, maxSize)
	}
	for i, c := range m.Columns {
		if err := validRange(c.Lower, c.Upper); err != nil {
			return fmt.Errorf("columns[%d].%w", i, err)
		}
		if math.IsNaN(c.Cost) || math.IsInf(c.Cost, 0) {
			return fmt.Errorf("columns[%d].cost: %v: want a finite number", i, c.Cost)
		}
	}
	terms, last := 0, make([]int, len(m.Columns)) // row of the column's last term, plus one
	for i, r := range m.Rows {
		if err := validRange(r.Lower, r.Upper); err != nil {
			return fmt.Errorf("rows[%d].%w", i, err)
		}
		for j, t := range r.Terms {
			switch {
			case t.Column < 0 || t.Column >= len(m.Columns):
				return fmt.Errorf("rows[%d].terms[%d].column: %d: the model has %d", i, j, t.Column, len(m.Columns))
			case last[t.Column] == i+1:
				return fmt.Errorf("rows[%d].terms[%d].column: %d: twice in the row; add the values", i, j, t.Column)
			case math.IsNaN(t.Value) || math.IsInf(t.Value, 0):
				return fmt.Errorf("rows[%d].terms[%d].value: %v: want a finite number", i, j, t.Value)
			}
			last[t.Column] = i + 1
		}
		if terms += len(r.Terms); terms > maxSize {
			return fmt.Errorf("rows[%d]: more than %d terms up to here", i, maxSize)
		}
	}
	return nil
}

// validRange allows crossed bounds: such a model is infeasible, which the engine says.
func validRange(lower, upper float64) error {
	if math.IsNaN(lower) || math.IsNaN(upper) || math.IsInf(lower, 1) || math.IsInf(upper, -1) {
		return fmt.Errorf("lower, upper: %v, %v: want numbers, or -Inf and +Inf for none", lower, upper)
	}
	return nil
}

// Feasible reports whether x satisfies rows, bounds and integrality within tol,
// relative to the size of what is compared.
func (m *Model) Feasible(x []float64, tol float64) bool {
	if len(x) != len(m.Columns) {
		return false
	}
	within := func(v, lower, upper float64) bool {
		slack := tol * max(1, math.Abs(v))
		return v >= lower-slack && v <= upper+slack
	}
	for i, c := range m.Columns {
		if !within(x[i], c.Lower, c.Upper) || c.Integer && math.Abs(x[i]-math.Round(x[i])) > tol {
			return false
		}
	}
	for _, r := range m.Rows {
		sum := 0.0
		for _, t := range r.Terms {
			sum += t.Value * x[t.Column]
		}
		if !within(sum, r.Lower, r.Upper) {
			return false
		}
	}
	return true
}

// Value is the cost of x.
func (m *Model) Value(x []float64) float64 {
	sum := 0.0
	for i, c := range m.Columns {
		sum += c.Cost * x[i]
	}
	return sum
}
