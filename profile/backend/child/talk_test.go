package child

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// told is all that a child said, and why it ended.
func told(t *testing.T, script string, longest int) (lines []string, end error) {
	t.Helper()
	ended := make(chan struct{})
	p, err := Talk(exec.Command("/bin/sh", "-c", script), longest, func(line []byte, why error) {
		if why != nil {
			end = why
			close(ended)
			return
		}
		lines = append(lines, string(line))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	if err := p.Send([]byte("this")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
	}
	return lines, end
}

func TestTalkHearsDescriptor3AndTheEnd(t *testing.T) {
	lines, end := told(t, "echo stray; read a; echo got $a >&3; echo more >&3; echo why >&2; exit 4", 100)
	if strings.Join(lines, ",") != "got this,more" || end == nil || end.Error() != "exit status 4: why" {
		t.Errorf("%q, %v", lines, end)
	}
}

func TestTalkKillsWhoSaysTooLongALine(t *testing.T) {
	lines, end := told(t, "echo short >&3; echo 0123456789 >&3; sleep 100", 10)
	if len(lines) != 1 || end == nil || !strings.Contains(end.Error(), "sent a line of more than 10 bytes") {
		t.Errorf("%q, %v", lines, end)
	}
}

func TestTalkOfNoProgram(t *testing.T) {
	if _, err := Talk(exec.Command("/no/such/program"), 10, nil); err == nil {
		t.Error("it started")
	}
}
