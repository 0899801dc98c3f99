package settings_test

import (
	"testing"

	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }
