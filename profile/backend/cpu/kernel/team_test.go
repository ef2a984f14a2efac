package kernel

import (
	"sync/atomic"
	"testing"
	"time"
)

// crews are the tests' teams, one a size; tests use one at a time.
var crews = map[int]*Team{}

func crew(size int) *Team {
	if crews[size] == nil {
		crews[size] = NewTeam(size)
	}
	return crews[size]
}

func TestTeamRunsEveryThreadOnceACall(t *testing.T) {
	for _, size := range []int{1, 2, 5} {
		team := NewTeam(size)
		for call := range 2000 {
			counts := make([]atomic.Int32, size)
			team.run(func(thread int) { counts[thread].Add(1) })
			for thread := range counts {
				if n := counts[thread].Load(); n != 1 {
					t.Fatalf("size %d, call %d: thread %d ran %d times", size, call, thread, n)
				}
			}
			if call%500 == 0 {
				time.Sleep(5 * time.Millisecond) // long enough for the helpers to park
			}
		}
		team.Close()
	}
}

// A call can fall into the moment in which a helper lies down; none may be
// missed, or the call would never end.
func TestTeamWakesHelpersThatAreJustParking(t *testing.T) {
	team := NewTeam(3)
	defer team.Close()
	for i := range 300 {
		time.Sleep(time.Duration(i*10) * time.Microsecond)
		var ran atomic.Int32
		team.run(func(int) { ran.Add(1) })
		if ran.Load() != 3 {
			t.Fatalf("%d of 3 threads ran", ran.Load())
		}
	}
}
