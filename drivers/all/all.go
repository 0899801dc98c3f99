// Package all registers every driver of this repository with package drivers: goredis, redigo and rueidis.
//
//	import _ "github.com/golocker/locker/drivers/all"
//
// A program that uses one client imports that driver's package instead and does not link the others.
package all

import (
	_ "github.com/golocker/locker/drivers/goredis"
	_ "github.com/golocker/locker/drivers/redigo"
	_ "github.com/golocker/locker/drivers/rueidis"
)
