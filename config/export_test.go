package config

// Paths returns the paths of all settings.
func Paths() []string {
	var paths []string
	for _, f := range fields() {
		paths = append(paths, f.path)
	}
	return paths
}

// ForgetTracing undoes RegisterTracing.
func ForgetTracing() { newTracing = nil }
