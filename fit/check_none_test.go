package fit

import (
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
)

// Where no point can be judged, the profile is blamed only if it set none aside, and a file that
// was cut off is said to be.
func TestNothingToJudgeSaysWhatIsMissing(t *testing.T) {
	for _, x := range []struct {
		held, torn int
		want       string
	}{
		{0, 0, "nothing to judge: the laws were fitted to every point of the recordings: none was set aside; fit with more points and a --holdout above 0, or check another recording: evenkeel calibrate"},
		{0, 1, "nothing to judge: the laws were fitted to every point of the recordings: none was set aside; the last line of 1 recording was cut off: if a copy broke off there, copy the file again; else fit with more points and a --holdout above 0, or check another recording: evenkeel calibrate"},
		{51, 0, "nothing to judge: the laws were fitted to all 3 points of the recordings: none of the 102 that were set aside is among them; check all that the profile was fitted to, or check another recording: evenkeel calibrate"},
		{51, 2, "nothing to judge: the laws were fitted to all 3 points of the recordings: none of the 102 that were set aside is among them; the last line of 2 recordings was cut off: if a copy broke off there, copy the file again; else check all that the profile was fitted to, or check another recording: evenkeel calibrate"},
	} {
		law := costmodel.Law{Held: costmodel.FitError{Points: x.held}}
		d := NewData()
		d.Points, d.Torn = make([]Point, 3), x.torn
		_, err := Check(&costmodel.Profile{Laws: []costmodel.Law{law, law}}, d, nil, DefaultLimits())
		if err == nil || err.Error() != x.want {
			t.Errorf("%d set aside, %d torn: %v\nwant %s", x.held, x.torn, err, x.want)
		}
	}
}
