package child

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// TestMain is also a process that owns a folder until it is killed.
func TestMain(m *testing.M) {
	parent := os.Getenv("EVENKEEL_OWN_A_FOLDER_IN")
	if parent == "" {
		os.Exit(m.Run())
	}
	f, err := newFolder(parent)
	if err != nil {
		panic(err)
	}
	if _, err := os.Stdout.WriteString("made\n"); err != nil {
		panic(err)
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	runtime.KeepAlive(f) // whose lock would be closed
}

func folders(t *testing.T, parent string) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(parent, folderPattern))
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

// owner is another process with a folder.
func owner(t *testing.T, parent string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "EVENKEEL_OWN_A_FOLDER_IN="+parent)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestTheFolderOfAKilledProcessIsRemovedByTheNext(t *testing.T) {
	parent := t.TempDir()
	dead, living := owner(t, parent), owner(t, parent)
	if n := folders(t, parent); n != 2 {
		t.Fatalf("%d folders of two processes", n)
	}
	if err := dead.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = dead.Wait()
	mine, err := newFolder(parent)
	if err != nil {
		t.Fatal(err)
	}
	if n := folders(t, parent); n != 2 {
		t.Errorf("%d folders: want that of the living process and mine", n)
	}
	if _, err := os.Stat(mine.Path); err != nil {
		t.Error(err)
	}
	if err := mine.Remove(); err != nil {
		t.Error(err)
	}
	if n := folders(t, parent); n != 1 {
		t.Errorf("%d folders after mine was removed", n)
	}
	_ = living.Process.Kill()
	_ = living.Wait()
	sweep(parent)
	if n := folders(t, parent); n != 0 {
		t.Errorf("%d folders of nobody", n)
	}
}

func TestASweepLeavesAloneWhatIsNoFolderOfOurs(t *testing.T) {
	parent, elsewhere := t.TempDir(), t.TempDir()
	err := errors.Join(
		os.Mkdir(filepath.Join(parent, "evenkeel-new"), 0o700),             // has no owner's file yet
		os.WriteFile(filepath.Join(parent, "evenkeel-file"), nil, 0o600),   // no folder
		os.WriteFile(filepath.Join(elsewhere, ownerFile), kernel(), 0o600), // unlocked
		os.Symlink(elsewhere, filepath.Join(parent, "evenkeel-link")),      // to a folder
		os.Mkdir(filepath.Join(parent, "evenkeel-linked"), 0o700),          // its owner's file is a link
		os.Symlink(filepath.Join(elsewhere, ownerFile), filepath.Join(parent, "evenkeel-linked", ownerFile)),
		os.Mkdir(filepath.Join(parent, "evenkeel-remote"), 0o700), // of another machine, whose locks are not seen here
		os.WriteFile(filepath.Join(parent, "evenkeel-remote", ownerFile), bytes.Repeat([]byte("0"), len(kernel())), 0o600),
		os.Mkdir(filepath.Join(parent, "evenkeel-pipe"), 0o700), // would be read for ever
		syscall.Mkfifo(filepath.Join(parent, "evenkeel-pipe", ownerFile), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	sweep(parent)
	if n := folders(t, parent); n != 6 {
		t.Errorf("%d are left of 6", n)
	}
	if _, err := os.Stat(filepath.Join(elsewhere, ownerFile)); err != nil {
		t.Error(err)
	}
}

func TestAFolderIsPrivate(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	f, err := NewFolder()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Remove(); err != nil {
			t.Error(err)
		}
	}()
	if info, err := os.Stat(f.Path); err != nil || info.Mode().Perm() != 0o700 {
		t.Error(info.Mode(), err)
	}
	t.Setenv("TMPDIR", "/no/such/folder")
	if _, err := NewFolder(); err == nil {
		t.Error("made a folder nowhere")
	}
}

func TestAFolderIsRemovedOnce(t *testing.T) {
	f, err := newFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Remove(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(f.Path); !os.IsNotExist(err) {
		t.Errorf("%s: %v", f.Path, err)
	}
}
