package lockcertmagic_test

import (
	"testing"

	"go.uber.org/goleak"
)

// internal/testing/adapters/lockcertmagic has the tests that need a store.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
