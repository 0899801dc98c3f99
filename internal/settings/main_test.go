package settings_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, redistest.Lingering()...) }
