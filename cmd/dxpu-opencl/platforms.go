package main

import (
	"os"
	"path/filepath"
	"strings"
)

// maxLibraries bounds the files of platforms outside of the system's folders.
const maxLibraries = 4096

// platformFiles returns the files of platforms that the variables of the box name, which may be
// outside of the system's folders: the ICD loader's files and, of the folders in
// LD_LIBRARY_PATH, the shared libraries. The other files there are not for a tenant's program.
// Dirs are folders that the loader lists.
func platformFiles(env func(string) string) (files, dirs []string) {
	add := func(pattern string) {
		found, _ := filepath.Glob(pattern) // the pattern's form is right, or the folder's name has brackets
		files = append(files, found...)
	}
	for _, dir := range folders(env("LD_LIBRARY_PATH")) {
		add(filepath.Join(dir, "*.so"))
		add(filepath.Join(dir, "*.so.*"))
	}
	for _, path := range folders(env("OCL_ICD_VENDORS")) {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			dirs = append(dirs, path)
			add(filepath.Join(path, "*.icd"))
		} else {
			files = append(files, path)
		}
	}
	files = append(files, folders(env("OCL_ICD_FILENAMES"))...)
	return files[:min(len(files), maxLibraries)], dirs
}

// folders returns the absolute paths of a list like PATH. The process's own folder is another one
// than the box's, so relative ones mean nothing.
func folders(list string) (out []string) {
	for _, path := range strings.Split(list, ":") {
		if filepath.IsAbs(path) {
			out = append(out, path)
		}
	}
	return out
}
