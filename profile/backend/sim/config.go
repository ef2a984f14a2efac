package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// Truth is the true cost of a simulated device: of compute ops
//
//	t = Launch + PerFLOP F + PerRow R + PerByte B + PerTail T
//
// with the op.Features of the shape, and of bandwidth ops Launch + PerByte B.
// Everything but the counts is in seconds.
type Truth struct {
	Parallel                          int
	Launch                            float64
	PerFLOP, PerRow, PerByte, PerTail float64
	Memory                            units.Bytes
}

// Link is the true cost of a simulated link: Alpha + Beta x seconds for x bytes
// on the busiest port.
type Link struct{ Alpha, Beta float64 }

// Config is a simulated cluster. Parse reads it from a command line.
type Config struct {
	Devices []Device
	Link    Link
	Noise   float64 // relative standard deviation of one sample, log-normal
	Seed    uint64

	Throttle float64 // share of batches taken while the hardware slows itself down, by 3x
	Fail     float64 // share of points whose worker crashes
	Hang     float64 // share of points whose worker hangs until its deadline
	Wrong    op.Kind // an op whose numerics are wrong
	Slow     string  // the place of a device that is slower than its type
	SlowBy   float64 // by this factor
}

// Device is a simulated device type and how many there are.
type Device struct {
	Name  string
	Count int
	Truth Truth
}

// places names the devices of every type, in the order of the command line.
func (c Config) places() []profile.Place {
	var places []profile.Place
	i := 0
	for _, d := range c.Devices {
		for range d.Count {
			name := fmt.Sprintf("n0/g%d", i)
			places = append(places, profile.Place{On: d.Name, Name: name, Ranks: []string{name}})
			i++
		}
	}
	return places
}

// types are the devices that a command line can name: made up, and named so
// that nobody takes them for a product.
func types() map[string]Truth {
	return map[string]Truth{
		"big":   {Parallel: 128, Launch: 6e-6, PerFLOP: 128 / 500e12, PerRow: 2e-11, PerByte: 1 / 3e12, PerTail: 1 / 8e12, Memory: 80 * units.GiB},
		"small": {Parallel: 96, Launch: 8e-6, PerFLOP: 96 / 180e12, PerRow: 4e-11, PerByte: 1 / 1.5e12, PerTail: 1 / 3e12, Memory: 40 * units.GiB},
	}
}

// Parse reads "2xbig+2xsmall,noise=0.02,seed=7,throttle=0.01,fail=0.01,hang=0.01,wrong=gemm,slow=n0/g1:1.22".
//
// The error names the part that is wrong and what it may be.
func Parse(s string) (Config, error) {
	c := Config{Link: Link{Alpha: 9e-6, Beta: 1 / 200e9}, Noise: 0.02, Seed: 1}
	parts := strings.Split(s, ",")
	for _, p := range strings.Split(parts[0], "+") {
		count, name, ok := strings.Cut(strings.TrimSpace(p), "x")
		n, err := strconv.Atoi(count)
		truth, known := types()[name]
		if ok && err == nil && known && (n < 1 || n > 1024) {
			return c, fmt.Errorf("sim: %q: want 1 to 1024 of a device", p)
		}
		if !ok || err != nil || !known {
			return c, fmt.Errorf("sim: %q: want a number and a device, such as 2xbig; the devices are big and small", p)
		}
		d := Device{Name: "sim_" + name, Count: n, Truth: truth}
		if slices.ContainsFunc(c.Devices, func(o Device) bool { return o.Name == d.Name }) {
			return c, fmt.Errorf("sim: %q: %s is there twice; add the counts", p, name)
		}
		c.Devices = append(c.Devices, d)
	}
	given := map[string]bool{}
	for _, p := range parts[1:] {
		if err := c.set(p); err != nil {
			return c, err
		}
		key, _, _ := strings.Cut(p, "=")
		if given[key] {
			return c, fmt.Errorf("sim: %q: %s is there twice; name it once", p, key)
		}
		given[key] = true
	}
	if places := c.places(); c.Slow != "" && !slices.ContainsFunc(places, func(p profile.Place) bool { return p.Name == c.Slow }) {
		return c, fmt.Errorf("sim: slow=%s: there is no such device; they are %s to %s", c.Slow, places[0].Name, places[len(places)-1].Name)
	}
	return c, nil
}

func (c *Config) set(p string) error {
	key, value, _ := strings.Cut(p, "=")
	shares := map[string]*float64{"noise": &c.Noise, "throttle": &c.Throttle, "fail": &c.Fail, "hang": &c.Hang}
	if share, ok := shares[key]; ok {
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !(v >= 0 && v <= 1) {
			return fmt.Errorf("sim: %s=%q: want a share between 0 and 1", key, value)
		}
		*share = v
		return nil
	}
	switch key {
	case "seed":
		v, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return fmt.Errorf("sim: seed=%q: want a whole number", value)
		}
		c.Seed = v
	case "wrong":
		if _, err := op.Lookup(op.Kind(value)); err != nil {
			return fmt.Errorf("sim: wrong=%q: %w", value, err)
		}
		c.Wrong = op.Kind(value)
	case "slow":
		place, by, _ := strings.Cut(value, ":")
		v, err := strconv.ParseFloat(by, 64)
		if err != nil || place == "" || !(v > 0 && v < 100) {
			return fmt.Errorf("sim: slow=%q: want a place and a factor, such as n0/g1:1.22", value)
		}
		c.Slow, c.SlowBy = place, v
	default:
		return fmt.Errorf("sim: %q: want noise, seed, throttle, fail, hang, wrong or slow", p)
	}
	return nil
}

// True is the noise-free time of one call on a device (of a collective: on the
// link, whatever the device).
func (c Config) True(t Truth, s op.Shape) units.Seconds {
	if f, ok := s.(op.Featured); ok {
		v := f.Features(t.Parallel)
		return units.Seconds(t.Launch + t.PerFLOP*v.FLOPs + t.PerRow*v.Rows + t.PerByte*v.Bytes + t.PerTail*v.Tail)
	}
	x := float64(op.Volume(s))
	if _, ok := s.(op.Grouped); ok {
		return units.Seconds(c.Link.Alpha + c.Link.Beta*x)
	}
	return units.Seconds(t.Launch + t.PerByte*x)
}
