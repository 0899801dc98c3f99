// Package tracing makes the setting "tracing: true" available to a program that imports it:
//
//	import _ "github.com/golocker/locker/config/tracing"
//
// It is a separate package because OpenTelemetry's API makes a program larger.
package tracing

import (
	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/middleware/tracing"
)

func init() { config.RegisterTracing(func() locker.Middleware { return tracing.New() }) }
