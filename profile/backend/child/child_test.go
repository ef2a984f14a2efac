package child

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func start(t *testing.T, script string) (*Process, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p, bufio.NewScanner(out)
}

func TestLinesGoInAndOut(t *testing.T) {
	p, out := start(t, "read a; echo got $a")
	if err := p.Send([]byte("this")); err != nil {
		t.Fatal(err)
	}
	if !out.Scan() || out.Text() != "got this" {
		t.Errorf("%q", out.Text())
	}
	if err := p.Wait(); err == nil || !strings.Contains(err.Error(), "ended without being asked to") {
		t.Errorf("%v", err)
	}
	if err := p.Send([]byte("late")); err != nil {
		t.Errorf("writing to a child that is gone: %v", err)
	}
}

func TestTheReasonOfAnEndHoldsWhatTheChildSaidLast(t *testing.T) {
	for script, want := range map[string]string{
		"echo first >&2; echo the reason >&2; exit 7":            "exit status 7: the reason",
		"echo 'panic: broken' >&2; echo 'goroutine 1' >&2; exit": "panic: broken",
		"kill -SEGV $$": "segmentation fault",
	} {
		p, _ := start(t, script)
		if err := p.Wait(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", script, err)
		}
	}
}

func TestKillEndsTheWholeGroup(t *testing.T) {
	p, out := start(t, "sleep 100 & echo $!; wait")
	out.Scan()
	grandchild := out.Text()
	p.Kill()
	if err := p.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("%v", err)
	}
	for range 100 {
		// It may stay a zombie where nobody reaps it.
		if stat, err := os.ReadFile("/proc/" + grandchild + "/stat"); err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %s, which the child started, lives on", grandchild)
}

func TestOnlyTheEndOfStandardErrorIsKept(t *testing.T) {
	var s tail
	for range 100 {
		if _, err := s.Write([]byte(strings.Repeat("x", 4096))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Write([]byte("\nthe end\n")); err != nil {
		t.Fatal(err)
	}
	if len(s.buf) > tailSize || s.last() != "the end" {
		t.Errorf("%d bytes, last line %q", len(s.buf), s.last())
	}
}

func TestAStartedChildLeadsItsGroup(t *testing.T) {
	p, _ := start(t, "sleep 100")
	if group, err := syscall.Getpgid(p.PID()); err != nil || group != p.PID() {
		t.Errorf("group %d of process %d, %v", group, p.PID(), err)
	}
}
