package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// synonyms are other words of the field for values of flags, by the flag: what people write
// who come from torch, DeepSpeed or Megatron-LM, and mean the same.
func synonyms() map[string]map[string]string {
	zero := map[string]string{"auto": "auto"}
	for _, stage := range []string{"0", "1", "2", "3"} {
		for _, before := range []string{"", "zero-", "zero_"} {
			zero[before+stage] = "zero" + stage
		}
	}
	dtype := map[string]string{}
	for word, known := range map[string]string{
		"bfloat16": "bf16", "float16": "f16", "fp16": "f16", "half": "f16", "float32": "f32", "fp32": "f32", "float": "f32", "float8": "fp8",
	} {
		dtype[word], dtype["torch."+word] = known, known
	}
	return map[string]map[string]string{"zero": zero, "dtype": dtype}
}

// synonymous lets the flags of a verb that have synonyms take these, in capital letters too.
func synonymous(c *cobra.Command) {
	for name, words := range synonyms() {
		if f := c.Flags().Lookup(name); f != nil {
			f.Value = &synonymValue{f.Value, words}
		}
	}
}

// synonymValue is a flag's value by a word that it has synonyms for.
type synonymValue struct {
	pflag.Value
	words map[string]string
}

func (v *synonymValue) Set(s string) error {
	word := strings.ToLower(s)
	if known, ok := v.words[word]; ok {
		return v.Value.Set(known)
	}
	for _, known := range v.words {
		if known == word {
			return v.Value.Set(word)
		}
	}
	return v.Value.Set(s)
}

// insteadOf says what there is in the place of a way to compute again that others have.
func insteadOf(recompute string) string {
	if strings.ToLower(recompute) != "selective" {
		return ""
	}
	return "; what selective of Megatron-LM computes again, the scores of attention, is never kept by the fused attention that is planned with: none is the nearest"
}

// onceEach lets every flag of a verb that takes one value take it once: of two the flag's
// library takes the last without a word, and whoever writes --profile a --profile b means
// both. The same value again says nothing else and is let pass, as are flags of yes or no and
// those that gather a list.
func onceEach(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if _, list := f.Value.(pflag.SliceValue); list || f.NoOptDefVal != "" {
			return
		}
		if f.DefValue == "0s" { // which help leaves out of a duration that it knows as one
			f.DefValue = "0"
		}
		f.Value = &onceValue{Value: f.Value, flag: f}
	})
}

// onceValue is a flag's value that is set once.
type onceValue struct {
	pflag.Value
	flag  *pflag.Flag
	given *string
}

func (v *onceValue) Set(s string) error {
	if v.given != nil && *v.given != s {
		return twiceError{flag: v.flag, first: *v.given, second: s}
	}
	v.given = &s
	return v.Value.Set(s)
}

// twiceError says that a flag of one value has two.
type twiceError struct {
	flag          *pflag.Flag
	first, second string
}

func (e twiceError) Error() string {
	name, way := "--"+e.flag.Name, "leave one out"
	if e.flag.Shorthand != "" {
		name = "-" + e.flag.Shorthand + ", " + name
	}
	if strings.Contains(e.flag.Usage, "separated by commas") {
		way = fmt.Sprintf("leave one out, or for both: --%s %s,%s", e.flag.Name, e.first, e.second)
	}
	return fmt.Sprintf("%s: is given twice, with %q and with %q, and takes one value: %s", name, e.first, e.second, way)
}

// apart says how a flag of yes or no is given its value, where true or false stands among the
// arguments of a verb and such a flag before it; "" of other arguments.
func apart(c *cobra.Command, given []string) string {
	at := slices.IndexFunc(given, func(s string) bool { return s == "true" || s == "false" })
	hint := ""
	c.Flags().Visit(func(f *pflag.Flag) {
		if at >= 0 && hint == "" && f.Value.Type() == "bool" {
			hint = fmt.Sprintf(": a flag of yes or no has its value behind =, such as --%s=%s", f.Name, given[at])
		}
	})
	return hint
}

// perhaps suggests the flag of a verb that one was meant to be which it does not have.
func perhaps(c *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 { // a letter is near every other
		return ""
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := spelling.Nearest(unknown.GetSpecifiedName(), names); near != "" {
		return spelling.Suggest("--" + near)
	}
	return ""
}

// wanted says what a flag takes that was given something else, in other words than those of
// the functions that tried to read it; "" of other errors.
func wanted(err error) string {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return ""
	}
	want := map[string]string{
		"int": "a whole number", "intSlice": "whole numbers separated by commas", "uint64": "a whole number, 0 or more",
		"float64": "a number, such as 0.2", "duration": "a time, such as 90s or 10m", "bool": "true or false, or nothing",
	}[bad.GetFlag().Value.Type()]
	if want == "" {
		return ""
	}
	why := ""
	if errors.Is(err, strconv.ErrRange) {
		why = ", and not as large a one"
	}
	return fmt.Sprintf("--%s %q: want %s%s", bad.GetFlag().Name, bad.GetValue(), want, why)
}
