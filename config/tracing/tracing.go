// Package tracing lets configurations say "tracing: true". A program that wants that imports it for its effect:
//
//	import _ "github.com/golocker/locker/config/tracing"
//
// It is a package of its own because OpenTelemetry's API adds two megabytes to a program, which one that does not trace
// need not carry.
package tracing

import (
	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/middleware/tracing"
)

func init() { config.RegisterTracing(func() locker.Middleware { return tracing.New() }) }
