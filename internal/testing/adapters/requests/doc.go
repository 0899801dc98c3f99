// Package requests tests the adapters for web handlers, lockhttp and lockgrpc, with instances of a program that serve
// requests.
package requests
