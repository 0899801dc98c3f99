// Package fences tests package fence on real databases, with the drivers that programs use.
package fences
