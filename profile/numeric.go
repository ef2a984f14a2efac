package profile

// Numeric is the error of an op's outputs against a float64 reference, at one shape.
type Numeric struct {
	Spot
	// Cuts are the token positions at which a causal square was cut into the blocks of a
	// ring, which were computed separately and merged; absent for a single call.
	Cuts    []int   `json:"cuts_tokens,omitempty"`
	Output  string  `json:"output,omitzero"` // name of the output with the largest error
	Worst   float64 `json:"relative_error"`  // largest relative error of an output, in the 2-norm
	Limit   float64 `json:"limit"`
	Error   string  `json:"error,omitzero"` // why there is no error to state
	Skipped bool    `json:"skipped,omitzero"`
}

// OK says whether the comparison gives no reason to distrust the op.
func (n Numeric) OK() bool { return n.Skipped || n.Error == "" && n.Worst <= n.Limit }
