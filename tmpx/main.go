package main

import (
	"fmt"
	"os"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
)

func main() {
	d := fit.NewData()
	f, _ := os.Open(os.Args[1])
	if err := d.Add("x", f); err != nil {
		panic(err)
	}
	for _, share := range []float64{0.2} {
		p, err := fit.Fit(d, fit.Options{Seed: 1, Share: share})
		if err != nil {
			panic(err)
		}
		for _, l := range p.Laws {
			fmt.Printf("%-10.10s %-10s %-14s %-10s n=%d/%d ", l.On(), l.Op, l.Variant, l.Form(), l.Fit.Points, l.Held.Points)
			for _, r := range l.Rivals {
				fmt.Printf("%s %.3f%v ", r.Form, r.Median, map[bool]string{true: "*"}[r.Chosen])
			}
			fmt.Printf("| fit %.3f %.3f held %.3f %.3f cov %.2f spread %.2f", l.Fit.Median, l.Fit.P90, l.Held.Median, l.Held.P90, l.Held.Coverage, l.Spread.Hi)
			if l.Linear != nil {
				fmt.Printf(" [")
				for _, c := range l.Linear.Coefs() {
					fmt.Printf("%.2g ", c.Value)
				}
				fmt.Printf("]")
			}
			fmt.Println()
		}
		_ = op.F32
		r, _ := fit.Check(p, d, d.Held(1, share), fit.DefaultLimits())
		for _, row := range r.Rows {
			fmt.Printf("%-12s %-28s n=%d out=%d med %.3f (%.3f) p90 %.3f (%.3f) bias %+.3f cov %.2f %s\n", row.Family, row.On, row.Points, row.Outside, row.Median, row.MedianUpper, row.P90, row.P90Upper, row.Bias, row.Coverage, row.Verdict)
		}
	}
}

func init() {
	if len(os.Args) > 2 {
		d := fit.NewData()
		f, _ := os.Open(os.Args[1])
		d.Add("x", f)
		p, _ := fit.Fit(d, fit.Options{Seed: 1, Share: 0})
		r, _ := fit.Check(p, d, d.Points, fit.DefaultLimits())
		q := 0
		for i, x := range r.Pairs {
			if l := x.Log(); l > 0.2 || l < -0.2 {
				_ = i
				q++
				fmt.Printf("%s %s %+.2f %.3gms\n", x.On, x.Op, l, x.Measured*1e3)
			}
		}
		fmt.Println(q, len(r.Pairs))
	}
}
