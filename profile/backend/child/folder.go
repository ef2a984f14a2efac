package child

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// Folder is a private folder for what children run from and write, which does not
// outlive its owner for long: what a killed process left behind is removed when
// the next one makes a folder.
type Folder struct {
	Path string
	lock *os.File
}

// folderPattern names the folders, ownerFile the file in each that its owner
// keeps locked. The system unlocks it when the owner ends, however it ends,
// which no number of a process can tell across containers that share a folder.
const (
	folderPattern = "evenkeel-*"
	ownerFile     = "owner"
)

// kernel identifies the kernel that runs here, by its boot; empty where it does not
// tell. The owner's file holds it, for machines may share a folder whose file
// system keeps each one's locks from the others (NFS with local_lock, Lustre with
// localflock): who owns a folder is asked on its own machine only.
func kernel() []byte {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // Linux has it
	return id
}

// NewFolder makes a folder among the system's temporary files, and removes those
// of owners that are no more.
func NewFolder() (*Folder, error) { return newFolder(os.TempDir()) }

func newFolder(parent string) (*Folder, error) {
	sweep(parent)
	path, err := os.MkdirTemp(parent, folderPattern) // 0700
	if err != nil {
		return nil, err
	}
	f := &Folder{Path: path}
	if f.lock, err = owned(path); err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return f, nil
}

// owned locks a new folder's file before it has its name, so that nobody finds
// it unlocked. A file system without locks leaves it without its name, and nobody
// sweeps the folder. The descriptor is not passed on to children.
func owned(path string) (*os.File, error) {
	early := filepath.Join(path, ownerFile+".new")
	lock, err := os.OpenFile(early, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return lock, nil
	}
	if _, err = lock.Write(kernel()); err == nil {
		err = os.Rename(early, filepath.Join(path, ownerFile))
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// Remove removes the folder with all that is in it. A second time it does nothing.
func (f *Folder) Remove() error {
	if f.lock == nil {
		return nil
	}
	lock := f.lock
	f.lock = nil
	return errors.Join(os.RemoveAll(f.Path), lock.Close())
}

// sweep removes the folders in parent whose owners are gone. One without the
// owner's file is left alone: it may be about to get it, or somebody else's. So is
// one from another machine or before this one's last start.
func sweep(parent string) {
	paths, err := filepath.Glob(filepath.Join(parent, folderPattern))
	if err != nil {
		return // the pattern is a constant
	}
	for _, path := range paths {
		if info, err := os.Lstat(path); err != nil || !info.IsDir() {
			continue // a link may lead anywhere
		}
		lock, err := os.OpenFile(filepath.Join(path, ownerFile), os.O_RDWR|syscall.O_NOFOLLOW, 0)
		if err != nil {
			continue // none, or another user's
		}
		if ofHere(lock) && syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(path) // what cannot be removed stays for the next
		}
		_ = lock.Close() // nothing was written
	}
}

// ofHere says whether an owner's file was written on this machine.
func ofHere(owner *os.File) bool {
	here := kernel()
	there := make([]byte, len(here))
	_, err := owner.ReadAt(there, 0) // what is no file has no places to read at
	return err == nil && bytes.Equal(here, there)
}
