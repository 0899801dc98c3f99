//go:build linux || darwin

package file

var Advised = advised
