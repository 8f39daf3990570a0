//go:build tools

// Package jaeger pins the trace store that the observability tests run against: Jaeger v2, built from its Go module.
package jaeger

import _ "github.com/jaegertracing/jaeger/cmd/jaeger"
