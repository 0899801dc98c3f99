// Package requests tests the adapters for web handlers, lockhttp and lockgrpc, with instances of a program that serve
// requests. It is in this module because it needs the backends of several stores.
package requests
