package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagGroup is flags of a verb that its help lists together, in an order that tells what goes
// with what.
type flagGroup struct {
	title string
	flags string // names, separated by spaces
}

// groupedFrom is how many flags a verb has whose help is grouped: of fewer the alphabet is as
// quick to read.
const groupedFrom = 15

const (
	trainingFlags  = "dtype recompute zero overlap-zero ring-buffers loss-chunk"
	publishedFlags = "costs devices per-node memory context"
)

// flagGroups are those of the help of a verb; of one that has none its flags stand in one list.
func flagGroups(verb string) []flagGroup {
	switch verb {
	case "calibrate":
		return []flagGroup{
			{"What is measured, and how long", "budget points choose only devices group-sizes model dtype seed"},
			{"By what", "backend python allow-shared point-timeout"},
			{"A job that is printed", "print-launch nodes gpus-per-node image"},
			{"Output", "out fresh dry-run numerics help"},
		}
	case "solve":
		return []flagGroup{
			{"Cluster and laws", "cluster profile link network memory-reserve"},
			{"Model and sequences", "model seq-len lengths column batch-size batch lengths-seed max-len truncate pad tasks"},
			{"Training", trainingFlags + " grad-accumulation"},
			{"Pipelines", "pipeline stages stages-of"},
			{"Published prices in the place of laws", publishedFlags},
			{"Search", "strategy take effort deadline fast mip-time"},
			{"A layout of your own", "shares q-heads head-chunks two-batch-overlap weave"},
			{"Output", "output timeline explain help"},
		}
	case "serve":
		return []flagGroup{
			{"Where it listens", "socket listen token-file"},
			{"Cluster and laws", "cluster profile link network memory-reserve"},
			{"Model and training", "model " + trainingFlags},
			{"Pipelines", "stages-of"},
			{"Published prices in the place of laws", publishedFlags},
			{"Work", "workers queue max-sequences max-planning max-wait drain"},
			{"Output", "journal keep help"},
		}
	case "replay":
		return []flagGroup{
			{"What is run", "parts model dtype docs layers loss-chunk seed"},
			{"By what", "kernel comm python oversubscribe timeout"},
			{"Samples and output", "repeats warmup sampled-above output help"},
		}
	case "check":
		return []flagGroup{
			{"What is checked, and by what", "profile plan link network drift-from"},
			{"Limits", "limits max-error min-len strict"},
			{"Output", "all junit markdown timeline help"},
		}
	}
	return nil
}

// groupFlags has the help of verbs with groups list their flags by these.
func groupFlags(root *cobra.Command) {
	plain := root.UsageFunc()
	root.SetUsageFunc(func(c *cobra.Command) error {
		of := flagGroups(c.Name())
		if len(of) == 0 {
			return plain(c)
		}
		out := c.OutOrStderr()
		var text bytes.Buffer
		c.SetOut(&text)
		err := plain(c)
		c.SetOut(out)
		if err != nil {
			return err
		}
		list := "Flags:\n" + strings.TrimRight(c.LocalFlags().FlagUsages(), " \n")
		_, err = io.WriteString(out, strings.Replace(text.String(), list, inGroups(c, of), 1))
		return err
	})
}

// inGroups is the flags of a verb, each group below its title; what is in none stands last, as
// a flag would that somebody adds without a word here, if a test did not find it.
func inGroups(c *cobra.Command, of []flagGroup) string {
	var b strings.Builder
	list := func(title string, flags []*pflag.Flag) {
		set := pflag.NewFlagSet(title, pflag.ContinueOnError)
		set.SortFlags = false
		for _, f := range flags {
			set.AddFlag(f)
		}
		if set.HasFlags() {
			fmt.Fprintf(&b, "%s:\n%s\n", title, set.FlagUsages())
		}
	}
	var listed []string
	for _, g := range of {
		var flags []*pflag.Flag
		for _, name := range strings.Fields(g.flags) {
			if f := c.LocalFlags().Lookup(name); f != nil {
				flags, listed = append(flags, f), append(listed, name)
			}
		}
		list(g.title, flags)
	}
	var rest []*pflag.Flag
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(listed, f.Name) {
			rest = append(rest, f)
		}
	})
	list("Others", rest)
	return strings.TrimRight(b.String(), "\n")
}
