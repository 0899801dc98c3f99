package config

import (
	"reflect"
)

// cloned returns a copy of v that shares nothing with it.
func cloned(v reflect.Value) reflect.Value {
	if !v.IsValid() || v.IsZero() {
		return v
	}
	switch v.Kind() {
	case reflect.Interface:
		return cloned(v.Elem())
	case reflect.Pointer:
		c := reflect.New(v.Type().Elem())
		c.Elem().Set(cloned(v.Elem()))
		return c
	case reflect.Struct:
		c := reflect.New(v.Type()).Elem()
		c.Set(v)
		for i := range v.NumField() {
			if c.Field(i).CanSet() {
				c.Field(i).Set(cloned(v.Field(i)))
			}
		}
		return c
	case reflect.Slice:
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			c.Index(i).Set(cloned(v.Index(i)))
		}
		return c
	case reflect.Map:
		c := reflect.MakeMapWithSize(v.Type(), v.Len())
		for _, key := range v.MapKeys() {
			c.SetMapIndex(key, cloned(v.MapIndex(key)))
		}
		return c
	}
	return v
}
