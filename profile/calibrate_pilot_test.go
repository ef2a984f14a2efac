package profile_test

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
)

// Of a device whose workers only hang, few families are tried; those of others are, and of ops
// beside one that hangs in all of its families.
func TestPilotsOfADeadDeviceEnd(t *testing.T) {
	of := func(on string, kind op.Kind) func(m moment) fault {
		return func(m moment) fault {
			if m.on == on && (kind == "" || m.shape.Kind() == kind) {
				return hangs
			}
			return none
		}
	}
	for name, c := range map[string]struct {
		strikes  func(m moment) fault
		untried  string        // begins the names of those families that are not tried
		measured int           // ops of devices and the group
		lost     time.Duration // in pilots
		starts   time.Duration
	}{
		"a device": {of("sim_small", ""), "sim_small ", 10 + 6, time.Minute, 8 * time.Second},
		// Forward attention has three families: one is tried at first, one at the end.
		"an op": {of("sim_big", op.KindAttnFwd), "sim_big attn_fwd", 9 + 10 + 6, time.Minute, 8 * time.Second},
		"two ops with others between": {func(m moment) fault {
			if k := m.shape.Kind(); m.on == "sim_big" && (k == op.KindNorm || k == op.KindSwiGLU) {
				return hangs
			}
			return none
		}, "", 8 + 10 + 6, time.Minute, 8 * time.Second},
		// The very first pilot dies, twice, with starts of forty seconds: that leaves nothing untried.
		"an early crash": {func(m moment) fault {
			if m.visit <= 2 {
				return dies
			}
			return none
		}, "", 10 + 10 + 6, 80 * time.Second, 40 * time.Second},
		"two that take no time": {func(m moment) fault {
			if m.visit <= 4 {
				return dies
			}
			return none
		}, "", 10 + 10 + 6, 4 * time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := waitingFor(t, "1xbig+1xsmall")
				b.strikes = c.strikes
				b.starts = func(int) time.Duration { return c.starts }
				path := filepath.Join(t.TempDir(), "x")
				cfg := small(time.Minute)
				took := b.measured(t, path, cfg)
				got := read(t, path)
				untried := 0
				for _, p := range got.points {
					if !strings.Contains(p.Error, "not tried: workers of ") {
						continue
					}
					if untried++; c.untried == "" || !strings.HasPrefix(p.On+" "+string(p.Op), c.untried) || p.Class != profile.Cut {
						t.Errorf("%s on %s, %s: %s", p.Op, p.On, p.Class, p.Error)
					}
				}
				if (untried > 0) != (c.untried != "") {
					t.Errorf("%d families were not tried", untried)
				}
				kinds := map[string]bool{}
				for _, s := range got.schedule.Points {
					kinds[s.On+" "+string(s.Op)] = true
				}
				if len(kinds) != c.measured {
					t.Errorf("points of %v, want %d ops", kinds, c.measured)
				}
				// Pilots have no part of half of the budget; six starts at most are no failure's.
				if most := cfg.Budget*3/2 + c.lost + 6*c.starts; took > most {
					t.Errorf("took %v, want %v at most", took, most)
				}
			})
		})
	}
}

// A machine on which everything hangs is given up after two pilots, not after all of eighteen.
func TestAMachineThatOnlyHangsIsGivenUpSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := waitingFor(t, "1xbig")
		b.strikes = func(moment) fault { return hangs }
		took, err := b.tried(t, filepath.Join(t.TempDir(), "x"), small(20*time.Second))
		want := "no op could be run at all: attn_fwd on sim_big: cut: its worker was ended after 30s without an answer, for which a budget of 20s has no more time (no answer before the deadline); nor could any other of 2 families of shapes; 16 more were not tried"
		if err == nil || err.Error() != want || took > time.Minute+time.Second {
			t.Errorf("after %v: %v\nwant %s", took, err, want)
		}
	})
}
