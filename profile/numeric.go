package profile

// Numeric is how far an op's outputs are from its float64 reference at a shape.
type Numeric struct {
	Spot
	// Cuts are the tokens at which a causal square was cut into the blocks of a
	// ring, computed one by one and put together; absent where it was one call.
	Cuts    []int   `json:"cuts_tokens,omitempty"`
	Output  string  `json:"output,omitzero"` // the one that is farthest off
	Worst   float64 `json:"relative_error"`  // in the 2-norm
	Limit   float64 `json:"limit"`
	Error   string  `json:"error,omitzero"` // why there is no number
	Skipped bool    `json:"skipped,omitzero"`
}

// OK says whether the op may be trusted, as far as this comparison goes.
func (n Numeric) OK() bool { return n.Skipped || n.Error == "" && n.Worst <= n.Limit }
