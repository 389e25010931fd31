package cli

import (
	"errors"

	"github.com/dxpu-project/dxpu/internal/yamltext"
)

// yamlError returns an error of the YAML parser without the words of Go and without
// tokens, in a bounded text.
func yamlError(err error) error {
	return yamltext.Error(errors.New(withoutTokens(err.Error())), maxYAMLError)
}
