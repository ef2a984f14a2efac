package main

import "runtime/debug"

// versionLine is what --version prints: the version, and of which commit the binary was
// built where the toolchain knows it. Documents name the version alone, so that the same
// inputs give the same bytes from one commit to the next.
func versionLine() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version
	}
	return version + built(info.Settings)
}

// built says of which revision a binary is, in parentheses, or nothing.
func built(settings []debug.BuildSetting) string {
	of := map[string]string{}
	for _, s := range settings {
		of[s.Key] = s.Value
	}
	revision := of["vcs.revision"]
	if revision == "" {
		return ""
	}
	if of["vcs.modified"] == "true" {
		return " (" + revision + ", modified)"
	}
	return " (" + revision + ")"
}
