package redlock_test

import _ "github.com/golocker/locker/drivers/valkey"
