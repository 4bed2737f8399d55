// Package interop shows that the recorder fits the modules that it works with: client-go's event
// interfaces, a controller-runtime manager, Flux's recorder, which it stands in for, and the limiter
// that notification-controller answers duplicates with. A TCP proxy between the two ends adds the
// faults of a network.
//
// The package holds nothing but tests; beside it are the programs that draw the pictures (draw) and
// mutate the recorder (mutate), and a test of random failures (soak). It is a module of its own, so
// that the recorder's module depends on none of its peers.
package interop
