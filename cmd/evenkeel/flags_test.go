package main

import (
	"errors"
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
