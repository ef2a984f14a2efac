package cpu

import (
	"errors"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/go-json-experiment/json/jsontext"
)

// request is a line to a worker.
type request struct {
	Do    verb           `json:"do"`
	Op    op.Kind        `json:"op,omitempty"`
	Shape jsontext.Value `json:"shape,omitempty"`
	Seed  uint64         `json:"seed,omitzero"`
	Inner int            `json:"inner,omitzero"`
	N     int            `json:"n,omitzero"`
}

type verb string

const (
	doPrepare verb = "prepare"
	doRun     verb = "run"
)

// response is a worker's answer to one request.
type response struct {
	Class     profile.Class `json:"class,omitempty"` // of the failure; absent on success
	Error     string        `json:"error,omitempty"`
	Times     []float64     `json:"times_s,omitempty"`
	Throttled bool          `json:"throttled,omitzero"`
	WaitShare float64       `json:"wait_share,omitzero"`
}

// failed turns an error into a response. Errors without a class of their own
// leave the worker in a state nobody knows, so it counts as crashed.
func failed(err error) response {
	r := response{Class: profile.Crashed, Error: err.Error()}
	var e *profile.OpError
	if errors.As(err, &e) {
		r.Class, r.Error = e.Class, e.Err.Error()
	}
	return r
}

func (r response) err() error {
	if r.Class == "" {
		return nil
	}
	return &profile.OpError{Class: r.Class, Lost: r.Class == profile.Crashed, Err: errors.New(r.Error)}
}
