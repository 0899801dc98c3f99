package locktus_test

import (
	"testing"

	"go.uber.org/goleak"
)

// internal/testing/adapters/locktus has the tests that need a store.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
