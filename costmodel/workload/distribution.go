package workload

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Distribution is a named random distribution of lengths. Equal specifications give equal
// lengths on every machine, and the first n lengths do not depend on how many are drawn.
type Distribution struct {
	spec string
	draw func(n int) []units.Tokens
}

// String is the specification with every default written out.
func (d Distribution) String() string { return d.spec }

// Lengths returns the first n lengths.
func (d Distribution) Lengths(n int) []units.Tokens { return d.draw(n) }

// kind is a family of distributions.
type kind struct {
	name   string
	doc    string
	params []param // in the order in which values may stand without their names
	build  func(v map[string]float64) (func(n int) []units.Tokens, error)
}

// param is a parameter of a kind.
type param struct {
	name     string
	lo, hi   float64
	preset   float64 // NaN: must be given
	whole    bool    // tokens, counts and seeds
	optional bool    // left out of the values unless given
}

var must = math.NaN()

const seedMost = 1 << 53 // what a float64 holds exactly

func kinds() []kind {
	tokens := float64(MaxLength)
	seed := param{name: "seed", hi: seedMost, whole: true}
	return []kind{
		{
			name: "lognormal", doc: "floor(exp(X)) + 1, X normal: median= or mean= of the lengths, sd= of their natural logarithm",
			params: []param{
				{name: "median", lo: 1, hi: tokens, preset: must, optional: true},
				{name: "mean", lo: 1, hi: tokens, preset: must, optional: true},
				{name: "sd", lo: 0, hi: 8, preset: must},
				seed,
			},
			build: lognormal,
		},
		{
			name: "uniform", doc: "whole numbers from lo to hi, all equally likely",
			params: []param{{name: "lo", lo: 1, hi: tokens, preset: must, whole: true}, {name: "hi", lo: 1, hi: tokens, preset: must, whole: true}, seed},
			build:  uniform,
		},
		{
			name: "burst", doc: "micro-batches of b sequences of 512 to 4096 tokens, every other one of them with one of `tokens`",
			params: []param{
				{name: "b", lo: 2, hi: 1 << 20, preset: 64, whole: true},
				{name: "tokens", lo: 1, hi: tokens, preset: 131072, whole: true},
				seed,
				{name: "p", hi: 1, preset: 0.5},
				{name: "total", lo: 1, hi: 1 << 40, preset: 64 * 8192, whole: true},
			},
			build: burst,
		},
		{
			name: "flexsp-standin", doc: "stand-in for the long-tailed corpora of FlexSP: lognormal, median 1000, sd 1.7, seed 7, padded to 2 gpus, none above context",
			params: flexspParams(7), build: flexspStandIn,
		},
		{
			name: "flexsp-wikipedia", doc: "drawn from the published quantiles of FlexSP's Wikipedia file, padded to 2 gpus, none above context",
			params: flexspParams(0), build: flexspWikipedia,
		},
	}
}

// ParseDistribution reads a specification such as
// "lognormal:median=1000,sd=1.7,seed=7", "uniform:512,4096", "burst" or
// "flexsp-standin:context=192000".
func ParseDistribution(spec string) (Distribution, error) {
	name, rest, _ := strings.Cut(spec, ":")
	all := kinds()
	i := slices.IndexFunc(all, func(k kind) bool { return k.name == name })
	if i < 0 {
		return Distribution{}, fmt.Errorf("%q: no such distribution%s; there are %s", name, spelling.Hint(name, kindNames()), strings.Join(kindNames(), ", "))
	}
	k := all[i]
	values, err := k.values(rest)
	if err != nil {
		return Distribution{}, fmt.Errorf("%s: %w", k.name, err)
	}
	draw, err := k.build(values)
	if err != nil {
		return Distribution{}, fmt.Errorf("%s: %w", k.name, err)
	}
	return Distribution{k.spell(values), draw}, nil
}

// Distributions lists the names that ParseDistribution knows, each with what it
// is.
func Distributions() [][2]string {
	var all [][2]string
	for _, k := range kinds() {
		all = append(all, [2]string{k.name, k.doc})
	}
	return all
}

func kindNames() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

// values reads "a,b,name=c" and fills in the defaults.
func (k kind) values(text string) (map[string]float64, error) {
	values := map[string]float64{}
	if text != "" {
		for i, word := range strings.Split(text, ",") {
			if err := k.read(word, i, values); err != nil {
				return nil, err
			}
		}
	}
	return values, k.fillIn(values)
}

// read enters the i-th word, "a" or "name=a", into the values.
func (k kind) read(word string, i int, values map[string]float64) error {
	name, value, named := strings.Cut(strings.TrimSpace(word), "=")
	if !named {
		if i >= len(k.params) {
			return fmt.Errorf("%q: there are only %d parameters: %s", word, len(k.params), k.names())
		}
		name, value = k.params[i].name, name
	}
	p := slices.IndexFunc(k.params, func(p param) bool { return p.name == name })
	if p < 0 {
		return fmt.Errorf("%q: no such parameter%s; there are %s", name, spelling.Hint(name, k.list()), k.names())
	}
	if _, twice := values[name]; twice {
		return fmt.Errorf("%s: given twice", name)
	}
	v, err := k.params[p].parse(value)
	if err == nil {
		values[name] = v
	}
	return err
}

// fillIn gives the parameters that were not given their defaults.
func (k kind) fillIn(values map[string]float64) error {
	for _, p := range k.params {
		if _, given := values[p.name]; given || p.optional {
			continue
		}
		if math.IsNaN(p.preset) {
			return fmt.Errorf("%s: missing; the parameters are %s", p.name, k.names())
		}
		values[p.name] = p.preset
	}
	return nil
}

func (p param) parse(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if t, err2 := units.ParseTokens(text); err2 == nil && p.whole {
		v, err = float64(t), nil // "128k"
	}
	switch {
	case err != nil || math.IsNaN(v):
		return 0, fmt.Errorf("%s: %q is no number", p.name, text)
	case v < p.lo || v > p.hi:
		return 0, fmt.Errorf("%s: %s: want %s to %s", p.name, text, plain(p.lo), plain(p.hi))
	case p.whole && v != math.Trunc(v):
		return 0, fmt.Errorf("%s: %s: want a whole number", p.name, text)
	}
	return v, nil
}

func plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func (k kind) list() []string {
	var names []string
	for _, p := range k.params {
		names = append(names, p.name)
	}
	return names
}

func (k kind) names() string { return strings.Join(k.list(), ", ") }

func (k kind) spell(values map[string]float64) string {
	var words []string
	for _, p := range k.params {
		if v, ok := values[p.name]; ok {
			words = append(words, p.name+"="+plain(v))
		}
	}
	return k.name + ":" + strings.Join(words, ",")
}
