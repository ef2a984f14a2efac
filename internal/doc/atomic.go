package doc

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	fileMode = 0o644
	dirMode  = 0o755
	// probeSize is one block of nearly every file system: writing less may fit into
	// the inode and succeed on a full disk.
	probeSize = 4096
)

// writableFile is what writing needs of a file, so that tests can let it fail.
type writableFile interface {
	io.Writer
	Sync() error
	Close() error
}

// createFunc makes a new file and fails if there is one.
type createFunc func(path string, mode fs.FileMode) (writableFile, error)

func createExclusive(path string, mode fs.FileMode) (writableFile, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
}

// WriteAtomic makes data the content of path: written to a temporary file beside it,
// synced, renamed over it, and the directory synced. A reader finds the old content or
// the new, also after a power cut. On failure the temporary file is removed, the old
// content stays, and the error is an [*Error] that names path and the system's reason.
//
// A symbolic link is followed and stays one; an existing file keeps its permissions. A
// device or a pipe, such as /dev/stdout, is written to as it is, since a rename would
// put a file in its place.
func WriteAtomic(path string, data []byte) error {
	return writeAtomic(createExclusive, path, data)
}

func writeAtomic(create createFunc, path string, data []byte) error {
	target := Target(path)
	mode, info := fs.FileMode(fileMode), fs.FileInfo(nil)
	if info, _ = os.Stat(target); info != nil && !info.Mode().IsRegular() {
		return writeThrough(path, data)
	}
	temp, err := writeTemp(create, filepath.Dir(target), mode, data)
	if err == nil && info != nil {
		err = os.Chmod(temp, info.Mode().Perm())
	}
	if err == nil {
		err = os.Rename(temp, target)
	}
	if err != nil {
		if temp != "" {
			err = errors.Join(err, os.Remove(temp))
		}
		return writeError(path, err)
	}
	if err := syncDir(filepath.Dir(target)); err != nil {
		return ioError(path, "written, but it may not survive a power cut", err, "write it again")
	}
	return nil
}

// Target is the file that what is written to path ends up in: symbolic links are followed,
// one to nothing yet as well. A device or a pipe is itself: what /dev/stdout links to may have
// no name.
func Target(path string) string {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return path
	}
	const mostLinks = 40 // as many as Linux follows
	for range mostLinks {
		// A link is relative to the folder that it is in, which may itself be linked to.
		if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
			path = filepath.Join(dir, filepath.Base(path))
		}
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return path
}

// writeThrough writes to something that is there and is no regular file.
func writeThrough(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return ioError(path, "cannot be written", err, "choose another name")
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		return ioError(path, "cannot be written", err, "choose another name")
	}
	return nil
}

// writeTemp writes data to a new file in dir, synced, and returns its name. After an
// error no such file is left. The mode goes through the umask, which os.CreateTemp
// would not do.
func writeTemp(create createFunc, dir string, mode fs.FileMode, data []byte) (string, error) {
	f, name, err := createTemp(create, dir, mode)
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(name))
	}
	return name, nil
}

// createTemp tries names until one is free. The name is short whatever the final name
// is, which may have the longest length allowed.
func createTemp(create createFunc, dir string, mode fs.FileMode) (writableFile, string, error) {
	for i := 0; ; i++ {
		name := filepath.Join(dir, fmt.Sprintf(".evenkeel-%d-%d.tmp", os.Getpid(), i))
		f, err := create(name, mode)
		if !errors.Is(err, fs.ErrExist) {
			return f, name, err
		}
	}
}

// syncDir makes a rename or a new file in dir durable. File systems that cannot sync a
// directory say EINVAL or ENOTSUP, and there is nothing more to do on them.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil
	}
	return errors.Join(err, d.Close())
}

// Probe reports whether results can be written to dir, before hours are spent on
// making them: it makes the directory if need be, writes one block to a temporary file,
// syncs and removes it. The error is an [*Error] that names dir and the system's reason,
// such as "permission denied", "read-only file system" or "no space left on device".
func Probe(dir string) error { return probe(createExclusive, dir) }

func probe(create createFunc, dir string) error {
	const hint = "choose another directory"
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return ioError(dir, "cannot make this directory", err, hint)
	}
	name, err := writeTemp(create, dir, fileMode, bytes.Repeat([]byte{'.'}, probeSize))
	if err == nil {
		err = os.Remove(name)
	}
	if err != nil {
		return ioError(dir, "cannot write in this directory", err, hint)
	}
	return nil
}

// HashBytes returns the SHA-256 of data in lower-case hexadecimal digits.
func HashBytes(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// HashFile returns the SHA-256 of a file in lower-case hexadecimal digits, reading it
// in pieces. The error is an [*Error] that names path.
func HashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", readError(path, err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", readError(path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
