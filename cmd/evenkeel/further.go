package main

import (
	"path/filepath"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/profile/backend/torch/launch"
	"github.com/evenkeel/evenkeel/results"
)

// calibratedIn is the flag with which a further calibration lies beside recordings that were
// made by one: "" where they are no calibration's, are in several folders, or in that which
// calibrate takes by itself.
func calibratedIn(recordings ...string) string {
	folder := ""
	for i, path := range recordings {
		dir, name := filepath.Split(filepath.ToSlash(path))
		if !strings.HasPrefix(name, strings.TrimSuffix(firstRecording, recordingEnd)) || !strings.HasSuffix(name, recordingEnd) {
			return ""
		}
		if dir = filepath.Clean(dir); i > 0 && dir != folder {
			return ""
		}
		folder = dir
	}
	if folder == "" || folder == "calibration" || launch.Quote(folder) != folder { // flags are told apart by spaces
		return ""
	}
	return "--out " + folder
}

// calibrated is calibratedIn for the recordings of a profile, if they lie where it names them:
// those of one that was moved alone do not.
func calibrated(document string, p *costmodel.Profile) string {
	var paths []string
	for _, in := range p.Inputs {
		path := filepath.Join(filepath.Dir(document), filepath.FromSlash(in.Path))
		if !exists(path) {
			return ""
		}
		paths = append(paths, path)
	}
	return calibratedIn(paths...)
}

// calibratedOf is calibrated for the one profile that flags name in a file; an error is for
// whoever reads it next.
func (o problem) calibratedOf() string {
	paths, _, err := o.profiles()
	if err != nil || len(paths) != 1 {
		return ""
	}
	p, err := loadProfile(paths[0])
	if err != nil {
		return ""
	}
	return calibrated(paths[0], p)
}

// advising gives the calibration that an error advises the flags of the one that was.
func advising(err error, flags string) error {
	if err == nil || flags == "" {
		return err
	}
	return advisedError{err, flags}
}

type advisedError struct {
	error
	flags string
}

func (e advisedError) Error() string { return results.Advised(e.error.Error(), e.flags) }

func (e advisedError) Unwrap() error { return e.error }
