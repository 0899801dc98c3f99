// Package alerts has a test of docs/dashboards in a real Prometheus, which reads a program in trouble: every alert
// fires, and every query of the dashboard shows something.
package alerts
