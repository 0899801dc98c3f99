// Package all registers every driver of this repository with package drivers: goredis, redigo and rueidis. The
// driver of valkey-go is a module of its own: import github.com/golocker/locker/drivers/valkeydriver as well.
//
//	import _ "github.com/golocker/locker/drivers/all"
//
// A program that uses one client imports that driver's package instead and does not link the others.
package all

import (
	_ "github.com/golocker/locker/drivers/goredisdriver"
	_ "github.com/golocker/locker/drivers/redigodriver"
	_ "github.com/golocker/locker/drivers/rueidisdriver"
)
