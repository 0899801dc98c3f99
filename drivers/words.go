package drivers

import "unsafe"

// Words appends the words of cmd to dst, for clients that take arguments as any. They are what any(word) gives, but
// share the memory of cmd instead of a copy of each string's header: that copy would be one allocation per word, and more
// than half of those of a call. cmd must not be modified as long as the values are in use.
func Words(dst []any, cmd Command) []any {
	for i := range cmd {
		var word any = "" // of the right type
		// An interface is two words, of which the second points to a value that nobody modifies: here to the string in cmd.
		(*[2]unsafe.Pointer)(unsafe.Pointer(&word))[1] = unsafe.Pointer(&cmd[i]) //nolint:gosec // see above
		dst = append(dst, word)
	}
	return dst
}
