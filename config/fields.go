package config

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// field is one setting, under its names in the three sources. The fields follow from the structs: a new setting is a
// new field of one of them.
type field struct {
	path  string // in YAML; below [] it is the same for every element of a list
	param string // in a URL; "": no parameter sets it
	kind  *kind  // the backend whose setting it is; nil: a setting of every Config
	typ   reflect.Type
	index []int // the way to it from the Config or the kind's settings, as for reflect's FieldByIndex
	from1 bool  // 0 is not a valid number here
}

// last stands in an index for the last element of a list.
const last = -1

// common are the settings that do not depend on the backend.
var common = settingsOf[Config](nil)

// fields returns all settings, as far as backends are registered.
func fields() []*field {
	all := slices.Clone(common)
	for _, k := range kinds() {
		all = append(all, k.fields...)
	}
	return all
}

func settingsOf[S any](k *kind) []*field {
	root := &field{kind: k, typ: reflect.TypeFor[S]()}
	if k != nil {
		root.path = k.name
	}
	return root.below()
}

// below returns the fields of the struct f. The field that switches a struct on or off comes after the struct's fields,
// so that it overrides them.
func (f *field) below() (all []*field) {
	for i := range f.typ.NumField() {
		sf := f.typ.Field(i)
		name, _, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		inJSON, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		typ := sf.Type
		if name == "-" && inJSON == "-" {
			continue // not a setting
		}
		if f.path == "" && (typ.Kind() == reflect.Struct || typ.Kind() == reflect.Map) {
			continue // a Config's settings of a backend
		}
		if name != inJSON || !nameLike(name) || !sf.IsExported() {
			panic(fmt.Sprintf("config: field %s of %v: the tags yaml and json must have the same name", sf.Name, f.typ))
		}
		child := &field{path: strings.TrimPrefix(f.path+"."+name, "."), kind: f.kind, typ: typ}
		child.index = append(slices.Clone(f.index), i)
		child.from1 = sf.Tag.Get("min") == "1"
		if sf.Tag.Get("url") != "-" && !strings.Contains(child.path, "[]") {
			child.param = child.path
			if f.kind != nil {
				child.param = strings.TrimPrefix(child.path, f.kind.name+".")
			}
			child.param = strings.ReplaceAll(child.param, ".", "_")
		}
		inner := *child
		switch {
		case child.isSwitch():
			inner.typ = typ.Elem()
			all = append(append(all, inner.below()...), child)
		case child.isList():
			if addr, ok := typ.Elem().FieldByName("Addr"); !ok || addr.Type.Kind() != reflect.String {
				panic(fmt.Sprintf("config: field %s of %v: the elements of a list need a string Addr", sf.Name, f.typ))
			}
			inner.path, inner.typ, inner.index = child.path+"[]", typ.Elem(), append(slices.Clone(child.index), last)
			all = append(append(all, child), inner.below()...)
		default:
			if typ.Kind() == reflect.Pointer {
				typ = typ.Elem()
			}
			_, parses := reflect.New(typ).Interface().(encoding.TextUnmarshaler)
			if !parses && typ != reflect.TypeFor[Addrs]() &&
				!slices.Contains([]reflect.Kind{reflect.String, reflect.Bool, reflect.Int}, typ.Kind()) {
				panic(fmt.Sprintf("config: field %s of %v has a type that no setting can have", sf.Name, f.typ))
			}
			all = append(all, child)
		}
	}
	return all
}

// isSwitch reports whether f is a section within another section that is nil if the feature is off.
func (f *field) isSwitch() bool {
	return f.typ.Kind() == reflect.Pointer && f.typ.Elem().Kind() == reflect.Struct
}

func (f *field) isList() bool {
	return f.typ.Kind() == reflect.Slice && f.typ.Elem().Kind() == reflect.Struct
}

// in returns the value of f in c. It creates missing sections on the path. c must not be shared.
func (f *field) in(c *Config) reflect.Value { return f.find(c, true) }

// find is in, except that without create it returns the zero Value if a section on the path is missing.
func (f *field) find(c *Config, create bool) reflect.Value {
	v := reflect.ValueOf(c)
	if f.kind != nil {
		v = reflect.ValueOf(f.kind.settings(c))
	}
	for _, i := range f.index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() && !create {
				return reflect.Value{}
			}
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		switch {
		case i == last && v.Len() == 0:
			return reflect.Value{}
		case i == last:
			v = v.Index(v.Len() - 1)
		default:
			v = v.Field(i)
		}
	}
	return v
}

// begin makes sure that the section f is there.
func (f *field) begin(c *Config) {
	if v := f.in(c); v.IsNil() {
		v.Set(reflect.New(f.typ.Elem()))
	}
}

// extend adds an element to the list f.
func (f *field) extend(c *Config) {
	v := f.in(c)
	v.Set(reflect.Append(v, reflect.Zero(f.typ.Elem())))
}

// text returns the value of f as it is written, secrets masked, and whether it is given.
func (f *field) text(c *Config) (text string, given bool) {
	v := f.find(c, false)
	switch {
	case !v.IsValid() || v.IsZero():
		return "", false
	case f.isSwitch():
		return "true", true
	}
	return fmt.Sprint(reflect.Indirect(v).Interface()), true
}

// set sets f in c. Its errors do not repeat the value.
func (f *field) set(c *Config, text string) error {
	v := f.in(c)
	switch on, err := parseBool(text); {
	case f.isList(): // of addresses
		v.SetZero()
		for addr := range strings.SplitSeq(text, ",") {
			f.extend(c)
			v.Index(v.Len() - 1).FieldByName("Addr").SetString(strings.TrimSpace(addr))
		}
		return nil
	case f.isSwitch():
		if err == nil && on {
			f.begin(c)
		} else if err == nil {
			v.SetZero()
		}
		return err
	case v.Kind() == reflect.Pointer: // which may be empty
		p := reflect.New(f.typ.Elem())
		if err := f.assign(p.Elem(), text); err != nil && !(text == "" && p.Elem().Kind() == reflect.String) {
			return err
		}
		v.Set(p)
		return nil
	}
	return f.assign(v, text)
}

func (f *field) assign(v reflect.Value, text string) error {
	switch v := v.Addr().Interface().(type) {
	case encoding.TextUnmarshaler:
		return v.UnmarshalText([]byte(text))
	case *Addrs:
		*v = splitAddrs(text)
		return nil
	}
	switch v.Kind() {
	case reflect.Bool:
		on, err := parseBool(text)
		if err != nil {
			return err
		}
		v.SetBool(on)
	case reflect.Int:
		n, err := strconv.ParseUint(text, 10, 31)
		switch {
		case err != nil:
			return errors.New("not a whole number of 0 or more")
		case n == 0 && f.from1:
			return errors.New("must be more than 0: leave it out for the default")
		}
		v.SetInt(int64(n))
	default:
		if text == "" {
			return errors.New("empty: give a value, or leave it out")
		}
		v.SetString(text)
	}
	return nil
}

func parseBool(v string) (bool, error) {
	on, err := strconv.ParseBool(v)
	if err != nil {
		return false, errors.New("neither true nor false")
	}
	return on, nil
}

// env returns the name of the variable that sets f. It is empty for elements of lists, which variables cannot set.
func (f *field) env() string {
	if strings.Contains(f.path, "[]") {
		return ""
	}
	return "LOCKER_" + strings.ToUpper(strings.ReplaceAll(f.path, ".", "_"))
}

// literal says whether each character of a value counts.
func (f *field) literal() bool { return f.isSecret() || f.path == "prefix" }

func (f *field) isSecret() bool { return f.typ == reflect.TypeFor[Secret]() }

var indexRE = regexp.MustCompile(`\[[0-9]+\]`)

// fieldAt returns the field with the given path, in which elements of lists may be numbered, or nil.
func fieldAt(path string) *field {
	path = indexRE.ReplaceAllString(path, "[]")
	for _, f := range fields() {
		if f.path == path {
			return f
		}
	}
	return nil
}

// sectionNames returns the names of the sections of a file.
func sectionNames() []string {
	names := backendNames()
	for _, f := range common {
		if f.isSwitch() {
			names = append(names, f.path)
		}
	}
	return names
}

// nameLike reports whether s looks like a name, so that an error may repeat it. Other text may be a piece of a secret
// that was not quoted or escaped.
func nameLike(s string) bool { return nameRE.MatchString(s) }

var (
	nameRE   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,40}$`)
	schemeRE = regexp.MustCompile(`^[a-z][a-z0-9+-]{0,40}$`)
)

// builder puts a Config together from its sources, collects every problem on the way, and remembers where each field
// came from, so that a value that turns out to be wrong later is still blamed on its line or variable.
type builder struct {
	c        *Config
	source   string            // what errors say before the name of a field that is set nowhere
	about    *kind             // the backend that a URL names; its parameters are named without it
	origin   map[string]string // by path: what errors say instead of source and name
	failed   map[string]bool   // by path: reported already
	broken   bool              // a source could not be read at all, so what is missing says nothing
	problems []error
}

// newBuilder returns a builder that goes on with c, which must not be shared.
func newBuilder(c *Config) *builder {
	return &builder{c: c, origin: make(map[string]string), failed: make(map[string]bool)}
}

func (b *builder) report(where string, err error) {
	b.problems = append(b.problems, fmt.Errorf("config: %s: %w", where, err))
}

// abandon reports an error after which the rest of a source makes no sense.
func (b *builder) abandon(where string, err error) {
	b.report(where, err)
	b.broken = true
}

// set sets the field at path to v, which came from where.
func (b *builder) set(path, v, where string) {
	below := func(p string) bool { return strings.HasPrefix(p, path+"[") } // a list is replaced as a whole
	maps.DeleteFunc(b.origin, func(p, _ string) bool { return below(p) })
	maps.DeleteFunc(b.failed, func(p string, _ bool) bool { return below(p) })
	b.origin[path] = where
	delete(b.failed, path)
	if err := fieldAt(path).set(b.c, v); err != nil {
		b.fail(path, where, err)
	}
}

// fail reports what is wrong with the field at path, once and for all.
func (b *builder) fail(path, where string, err error) {
	b.failed[path] = true
	b.report(where, err)
}

// finish checks the whole and returns it, or all problems.
func (b *builder) finish() (*Config, error) {
	b.c.check(func(path string, err error) {
		if err != nil && !b.broken && !b.failed[path] {
			b.fail(path, b.where(path), err)
		}
	})
	if b.problems != nil {
		return nil, errors.Join(b.problems...)
	}
	return b.c, nil
}

func (b *builder) where(path string) string {
	if where, ok := b.origin[path]; ok {
		return where
	}
	// What an element of a list lacks is looked for where the element is, or the list.
	if list := strings.IndexByte(path, '['); list >= 0 {
		for i := len(path) - 1; i >= list; i-- {
			if where, ok := b.origin[path[:i]]; ok {
				return where + path[i:]
			}
		}
	}
	if b.about == nil {
		return b.source + path
	}
	path = strings.TrimPrefix(path, b.about.name+".")
	if !strings.Contains(path, "[") { // the names in a URL are flat
		path = strings.ReplaceAll(path, ".", "_")
	}
	return b.source + path
}

var errAgain = errors.New("given more than once: remove all but one")

// unknown is the error for a name that is none of known.
func unknown(what, name string, known []string) error {
	list := "known: " + strings.Join(known, ", ")
	switch near := nearest(name, known); {
	case !nameLike(name):
		return fmt.Errorf("unknown %s (%s)", what, list)
	case near != "":
		return fmt.Errorf("unknown %s %q: did you mean %s? (%s)", what, name, near, list)
	default:
		return fmt.Errorf("unknown %s %q (%s)", what, name, list)
	}
}

// nearest returns the name among known of which s is probably a misspelling: one typo per three letters, two at most.
// It ignores case.
func nearest(s string, known []string) string {
	best, name := 3, ""
	for _, k := range known {
		if d := distance(strings.ToLower(s), strings.ToLower(k)); d < best && d <= max(1, len(k)/3) {
			best, name = d, k
		}
	}
	return name
}

// distance is the number of letters to insert, delete, replace or swap with their neighbour to get from a to b.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
