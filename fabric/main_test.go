package fabric

import (
	"testing"

	"github.com/dxpu-project/dxpu/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
