package main

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Every flag of every verb either gathers a list, is a matter of yes or no, or refuses a
// second value; the first again it takes.
func TestFlagsOfOneValueRefuseASecond(t *testing.T) {
	refused := 0
	for _, verb := range new(app).root().Commands() {
		verb.Flags().VisitAll(func(f *pflag.Flag) {
			if _, list := f.Value.(pflag.SliceValue); list || f.Value.Type() == "bool" {
				return
			}
			first, second := "1", "2"
			if f.Value.Type() == "duration" {
				first, second = "1s", "2s"
			}
			for _, value := range []string{first, first} {
				if err := verb.Flags().Set(f.Name, value); err != nil {
					t.Fatalf("%s --%s: %v", verb.Name(), f.Name, err)
				}
			}
			var twice twiceError
			if err := verb.Flags().Set(f.Name, second); !errors.As(err, &twice) || twice.first != first || twice.second != second {
				t.Errorf("%s --%s: %v", verb.Name(), f.Name, err)
			}
			refused++
		})
	}
	if refused < 60 {
		t.Errorf("only %d flags were tried", refused)
	}
}

// The help of every verb of many flags lists each of them once, in a group with a title, and
// no flag that the verb does not have.
func TestFlagsOfLargeVerbsAreInGroups(t *testing.T) {
	for _, verb := range new(app).root().Commands() {
		verb.InitDefaultHelpFlag()
		var flags []string
		verb.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { flags = append(flags, f.Name) })
		of := flagGroups(verb.Name())
		if len(of) == 0 {
			if len(flags) >= groupedFrom {
				t.Errorf("%s: %d flags in one list", verb.Name(), len(flags))
			}
			continue
		}
		var grouped []string
		for _, g := range of {
			grouped = append(grouped, strings.Fields(g.flags)...)
		}
		slices.Sort(grouped)
		slices.Sort(flags)
		if !slices.Equal(grouped, flags) {
			t.Errorf("%s has the flags %v, in groups are %v", verb.Name(), flags, grouped)
		}
		var out, errOut bytes.Buffer
		if code := run([]string{verb.Name(), "--help"}, strings.NewReader(""), &out, &errOut); code != exitDone || errOut.Len() > 0 {
			t.Fatalf("%s --help: exit code %d, %s", verb.Name(), code, &errOut)
		}
		_, all, _ := strings.Cut(out.String(), "Examples:")
		list := all
		for _, g := range of {
			at := strings.Index(list, "\n"+g.title+":\n")
			if at < 0 {
				t.Fatalf("%s --help has no %q:\n%s", verb.Name(), g.title, list)
			}
			list = list[at+1:]
			first, _, _ := strings.Cut(g.flags, " ")
			if line := strings.Split(list, "\n")[1]; !strings.Contains(line, "--"+first+" ") {
				t.Errorf("%s --help: below %q stands %q, want --%s", verb.Name(), g.title, line, first)
			}
		}
		for _, name := range flags {
			if n := strings.Count(all, "\n      --"+name+" ") + strings.Count(all, "\n  -"+name[:1]+", --"+name+" "); n != 1 {
				t.Errorf("%s --help lists --%s %d times", verb.Name(), name, n)
			}
		}
		if !strings.Contains(list, "\n\nGlobal Flags:\n") || strings.Contains(all, "\nFlags:\n") {
			t.Errorf("%s --help ends with %q", verb.Name(), list)
		}
	}
}

// What the field calls a value is that value; any other word is left for its flag to refuse.
func TestFlagsTakeSynonyms(t *testing.T) {
	for _, c := range []struct{ flag, given, want string }{
		{"zero", "3", "zero3"},
		{"zero", "ZeRO3", "zero3"},
		{"zero", "ZeRO-2", "zero2"},
		{"zero", "zero_1", "zero1"},
		{"zero", "auto", "auto"},
		{"zero", "4", "4"},
		{"zero", "Zero9", "Zero9"},
		{"dtype", "bfloat16", "bf16"},
		{"dtype", "torch.float16", "f16"},
		{"dtype", "FP16", "f16"},
		{"dtype", "fp32", "f32"},
		{"dtype", "BF16", "bf16"},
		{"dtype", "f64", "f64"},
		{"dtype", "int4", "int4"},
		{"zero", "AUTO", "auto"},
		{"zero", "torch.3", "torch.3"},
		{"dtype", "zero-fp16", "zero-fp16"},
		{"dtype", "float64", "float64"}, // which is refused as it was typed
	} {
		solve, _, err := new(app).root().Find([]string{"solve"})
		if err != nil {
			t.Fatal(err)
		}
		if err := solve.Flags().Set(c.flag, c.given); err != nil || solve.Flags().Lookup(c.flag).Value.String() != c.want {
			t.Errorf("--%s %s: %q, %v; want %q", c.flag, c.given, solve.Flags().Lookup(c.flag).Value, err, c.want)
		}
	}
}
