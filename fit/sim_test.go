package fit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/sim"
)

type memory struct{ bytes.Buffer }

func (m *memory) Append(line any) error {
	data, err := json.Marshal(line)
	m.Write(append(data, '\n'))
	return err
}

func simulate(t *testing.T, spec string, budget time.Duration) (sim.Config, *memory) {
	t.Helper()
	c, err := sim.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	var j memory
	past, _ := profile.NewPast()
	err = profile.Calibrate(context.Background(), sim.New(c), profile.Config{Tool: "test", Budget: budget, Seed: c.Seed, PointTimeout: time.Minute}, past, &j, func(profile.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	return c, &j
}

func TestCoverage(t *testing.T) {
	in, all := map[string]int{}, map[string]int{}
	forms := map[string]int{}
	for seed := 1; seed <= 20; seed++ {
		c, j := simulate(t, fmt.Sprintf("1xbig+1xsmall,noise=0.02,seed=%d", seed), time.Minute)
		d := fit.NewData()
		if err := d.Add("sim", bytes.NewReader(j.Bytes())); err != nil {
			t.Fatal(err)
		}
		p, err := fit.Fit(d, fit.Defaults())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range p.Laws {
			forms[string(l.Op)+" "+l.Form()]++
			check := func(name string, k costmodel.Coef, truth float64) {
				name = fmt.Sprintf("%s %s %s %s", l.On(), l.Op, l.Variant, name)
				all[name]++
				if truth >= k.Lo && truth <= k.Hi {
					in[name]++
				}
			}
			for _, dev := range c.Devices {
				if dev.Name != l.Device {
					continue
				}
				if l.Linear != nil {
					truth := [5]float64{dev.Truth.Launch, dev.Truth.PerFLOP, dev.Truth.PerRow, dev.Truth.PerByte, dev.Truth.PerTail}
					for i, k := range l.Linear.Coefs() {
						check(costmodel.LinearNames()[i], k, truth[i])
					}
				} else if l.Form() == "alpha_beta" {
					check("alpha", l.Curve.Pieces[0].Alpha, dev.Truth.Launch)
					check("beta", l.Curve.Pieces[0].Beta, dev.Truth.PerByte)
				}
			}
			if l.Group != "" && l.Form() == "alpha_beta" {
				check("alpha", l.Curve.Pieces[0].Alpha, c.Link.Alpha)
				check("beta", l.Curve.Pieces[0].Beta, c.Link.Beta)
			}
		}
	}
	ti, ta := 0, 0
	for name, n := range all {
		ti += in[name]
		ta += n
		if in[name]*10 < n*9 {
			t.Logf("%s: %d of %d", name, in[name], n)
		}
	}
	t.Log(ti, ta, len(all), forms)
}
