package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
)

// reference is what fit adds to a profile that others plan with.
type reference struct {
	assume   bool
	lenders  []*costmodel.Profile
	named    bool     // by --borrow
	origins  []string // title|repository|licence|commit
	remarks  []string
	training string // file of whole training steps
	stacks   []string
}

// steps reads the whole training steps, none where there is no file, before a fit, that may
// take minutes.
func (r reference) steps() (*fit.Training, error) {
	if r.training == "" {
		return nil, nil
	}
	return loadTraining(r.training)
}

// trained gives a profile what whole training steps took over its laws.
func (r reference) trained(p *costmodel.Profile, t *fit.Training, out string) error {
	if t == nil {
		return nil
	}
	from, err := inputs(out, []string{r.training})
	if err != nil {
		return err
	}
	if err := t.Onto(p, from[0]); err != nil {
		return fmt.Errorf("%s: %w", r.training, err)
	}
	return nil
}

// published reads the origins, which is done before a fit, that may take minutes.
func (r reference) published() ([]costmodel.Origin, error) {
	var origins []costmodel.Origin
	for _, text := range r.origins {
		o, err := originOf(text)
		if err != nil {
			return nil, err
		}
		origins = append(origins, o)
	}
	return origins, nil
}

// onto puts the laws to assume, the origins and the remarks into a profile.
func (r reference) onto(p *costmodel.Profile, origins []costmodel.Origin) {
	p.Origins = append(p.Origins, origins...)
	p.Warnings = append(p.Warnings, r.remarks...)
	if r.assume {
		fit.LendLinks(p, r.lenders...)
		for _, o := range originsOf(p, r.lenders) {
			if !slices.Contains(p.Origins, o) {
				p.Origins = append(p.Origins, o)
			}
		}
		fit.Assume(p)
	}
}

func originOf(text string) (costmodel.Origin, error) {
	parts := strings.Split(text, "|")
	if len(parts) != 4 {
		return costmodel.Origin{}, usagef("--origin %q: want four parts, title|repository|licence|commit", text)
	}
	for i := range parts {
		if parts[i] = strings.TrimSpace(parts[i]); parts[i] == "" {
			return costmodel.Origin{}, usagef("--origin %q: part %d of title|repository|licence|commit is empty", text, i+1)
		}
	}
	return costmodel.Origin{Title: parts[0], Repository: parts[1], Licence: parts[2], Commit: parts[3]}, nil
}
