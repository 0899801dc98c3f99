// Package embedded finds the client of go-redis in a type of a program.
package embedded

import (
	"reflect"

	"github.com/redis/go-redis/v9"
)

// In returns the client of go-redis that client is or embeds, or client if there is none.
func In(client redis.UniversalClient) redis.UniversalClient {
	if known := within(reflect.ValueOf(client)); known != nil {
		return known
	}
	return client
}

// within returns the client of go-redis that v is or embeds, or nil.
func within(v reflect.Value) redis.UniversalClient {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.IsNil() {
			return nil
		}
		if v.CanInterface() {
			switch known := v.Interface().(type) {
			case *redis.Client:
				return known
			case *redis.ClusterClient:
				return known
			case *redis.Ring:
				return known
			}
		}
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return nil
	}
	for i := range v.NumField() {
		if v.Type().Field(i).Anonymous {
			if known := within(v.Field(i)); known != nil {
				return known
			}
		}
	}
	return nil
}
