package hostproxy_test

import (
	"testing"

	"github.com/dxpu-project/dxpu/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
