package dxpuv1

import _ "embed"

// OpenAPI is the description of the PoolService in the format of OpenAPI 3.1, as JSON.
//
//go:embed openapi.json
var OpenAPI []byte
