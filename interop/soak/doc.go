// Package soak runs recorders for minutes against receivers that fail in every way, at random, and
// settles the account of every event. It holds nothing but a test, which is a matter of seconds
// unless it is told otherwise, in interop:
//
//	go test ./soak -race -v -soak 3m
package soak
