package ended

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestWhySaysWhatEndedIt(t *testing.T) {
	limited, stop := After(context.Background(), time.Nanosecond, "--deadline")
	defer stop()
	<-limited.Done()
	within, stop := context.WithCancel(limited)
	defer stop()
	late, stop := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer stop()
	pressed, press := context.WithCancel(context.Background())
	press()
	broken, fail := context.WithCancelCause(context.Background())
	lost := errors.New("a rank was lost")
	fail(lost)
	for _, c := range []struct {
		name string
		ctx  context.Context
		want string
		is   error
	}{
		{"a limit that has a name", limited, "the time was up (--deadline 1ns): give it more, or none", context.DeadlineExceeded},
		{"inside it", within, "the time was up (--deadline 1ns): give it more, or none", context.DeadlineExceeded},
		{"a limit", late, "the time that it was given was up", context.DeadlineExceeded},
		{"Ctrl-C", pressed, "it was interrupted", context.Canceled},
		{"another error", broken, "a rank was lost", lost},
	} {
		if err := Why(c.ctx); err == nil || err.Error() != c.want || !errors.Is(err, c.is) || !errors.Is(err, context.Cause(c.ctx)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if err := Why(context.Background()); err != nil {
		t.Errorf("nothing has ended: %v", err)
	}
}
