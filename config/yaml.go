package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Load reads a YAML file of the form described at the top of this page, then the variables in environ, which override
// it:
//
//	c, err := config.Load("locker.yaml")                  // the file alone
//	c, err := config.Load("locker.yaml", os.Environ()...) // the file and the environment
//
// It reports all problems at once, with their lines.
func Load(path string, environ ...string) (*Config, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	b := newBuilder(new(Config))
	b.yaml(path, data)
	b.environ(environ)
	return b.finish()
}

// yaml reads data, the content of the named file, into b. It walks the YAML nodes itself, because the errors of the
// yaml package repeat values, stop at the first unknown field, and have no paths.
func (b *builder) yaml(name string, data []byte) {
	b.source = name + ": "
	var doc, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF):
		b.abandon(name, errors.New("empty: at least the field backend is needed"))
		return
	case err != nil:
		b.syntax(name, err)
		return
	}
	switch err := d.Decode(&more); {
	case err == nil:
		b.report(fmt.Sprintf("%s:%d", name, more.Line), errors.New("a second document begins here: only one is read"))
	case !errors.Is(err, io.EOF):
		b.syntax(name, err)
		return
	}
	b.section(name, "", doc.Content[0])
}

// section reads the fields of the mapping n at path.
func (b *builder) section(name, path string, n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		err := errors.New("a section with fields is expected here")
		if f := fieldAt(path); f != nil && f.isSwitch() {
			err = fmt.Errorf("%w, or {} for the defaults", err)
		}
		b.report(at(name, n, path), err)
		return
	}
	seen := make(map[string]bool)
	for _, p := range b.pairs(name, path, n, make(map[*yaml.Node]bool)) {
		key, value := p.key, p.value
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		child := strings.TrimPrefix(path+"."+key.Value, ".")
		if key.Kind != yaml.ScalarNode || strings.ContainsAny(key.Value, ".[]") {
			child = path + "." // no field has that name
		}
		where := at(name, key, child)
		f := fieldAt(child)
		section := f != nil && f.isSwitch() || backend(child) != nil
		null := value.ShortTag() == "!!null"
		switch {
		case strings.HasPrefix(key.Value, "x-"): // a field for anchors
			continue
		case f == nil && !section && null: // part of a flow mapping: not shown, because it may be part of a password
			b.report(at(name, key, path), errors.New("an unknown field without a value; "+
				"a text with special characters needs quotes"))
		case f == nil && !section && misplaced[key.Value] != nil:
			b.report(where, misplaced[key.Value])
		case f == nil && !section:
			b.report(at(name, key, path), unknown("field", key.Value, fieldsBelow(path)))
		case seen[child]:
			b.report(where, errAgain)
		case null:
			b.fail(child, where, errors.New("no value: remove the line for the default"))
		case section:
			if f != nil {
				f.begin(b.c)
			}
			b.section(name, child, value)
		case f.isList():
			b.list(name, f, child, where, value)
		case f.typ == reflect.TypeFor[Addrs]() && value.Kind == yaml.SequenceNode:
			b.addrs(f, child, where, value)
		case !slices.Contains(scalars, value.ShortTag()):
			b.fail(child, where, errors.New("a single value is expected here"))
		default:
			b.set(child, value.Value, where)
		}
		seen[child] = true
	}
}

type pair struct{ key, value *yaml.Node }

// pairs returns the fields of the mapping n, with those that merge keys (<<) add; fields of n itself override them.
// Each node is merged only once, so a node may contain itself.
func (b *builder) pairs(name, path string, n *yaml.Node, merged map[*yaml.Node]bool) (ps []pair) {
	merged[n] = true
	var more []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		if key, value := n.Content[i], n.Content[i+1]; key.ShortTag() == "!!merge" {
			more = append(more, value)
		} else {
			ps = append(ps, pair{key, value})
		}
	}
	for i := 0; i < len(more); i++ {
		from := more[i]
		if from.Kind == yaml.AliasNode {
			from = from.Alias
		}
		switch {
		case merged[from]:
		case from.Kind == yaml.SequenceNode:
			merged[from] = true
			more = slices.Insert(more, i+1, from.Content...)
		case from.Kind == yaml.MappingNode:
			for _, p := range b.pairs(name, path, from, merged) {
				if !slices.ContainsFunc(ps, func(q pair) bool { return q.key.Value == p.key.Value }) {
					ps = append(ps, p)
				}
			}
		default:
			b.report(at(name, from, path), errors.New("<<: a section, or a list of sections, is expected after it"))
		}
	}
	return ps
}

// list reads the elements of the list f at path.
func (b *builder) list(name string, f *field, path, where string, n *yaml.Node) {
	b.origin[path] = where
	if n.Kind != yaml.SequenceNode {
		b.fail(path, where, errors.New("a list is expected here, each element a section such as {addr: host:6379}"))
		return
	}
	for i, item := range n.Content {
		element := fmt.Sprintf("%s[%d]", path, i)
		where := at(name, item, element)
		if item.Kind == yaml.AliasNode {
			item = item.Alias
		}
		f.extend(b.c)
		b.origin[element] = where
		if item.Kind != yaml.MappingNode {
			b.fail(element+".addr", where,
				errors.New("a section with fields is expected here, such as {addr: host:6379}"))
			continue
		}
		b.section(name, element, item)
	}
}

// addrs reads a list of addresses.
func (b *builder) addrs(f *field, path, where string, n *yaml.Node) {
	var all []string
	for _, item := range n.Content {
		if item.Kind == yaml.AliasNode {
			item = item.Alias
		}
		if item.Kind != yaml.ScalarNode || strings.Contains(item.Value, ",") {
			b.fail(path, where, errors.New("one address is expected in each place of the list, such as host:port"))
			return
		}
		all = append(all, item.Value)
	}
	if len(all) == 0 {
		b.fail(path, where, errors.New("an empty list"))
		return
	}
	b.set(path, strings.Join(all, ","), where)
}

// scalars are the tags of single values. Any other tag is an error, because it has no effect.
var scalars = []string{"!!str", "!!int", "!!float", "!!bool", "!!timestamp"}

// fieldsBelow returns the names of the fields of path.
func fieldsBelow(path string) []string {
	var names []string
	path = indexRE.ReplaceAllString(path, "[]")
	for _, f := range fields() {
		if rest, ok := strings.CutPrefix("."+f.path, strings.TrimSuffix("."+path, ".")+"."); ok {
			name, _, _ := strings.Cut(rest, ".")
			if name = strings.TrimSuffix(name, "[]"); len(names) == 0 || names[len(names)-1] != name {
				names = append(names, name)
			}
		}
	}
	return names
}

func at(name string, n *yaml.Node, path string) string {
	return strings.TrimSuffix(fmt.Sprintf("%s:%d: %s", name, n.Line, path), ": ")
}

var yamlError = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)

// syntax reports an error of the yaml package. The text is included only if it is known not to quote the file.
func (b *builder) syntax(name string, err error) {
	m := yamlError.FindStringSubmatch(err.Error())
	if m == nil {
		m = make([]string, 3)
	}
	if m[1] != "" {
		name += ":" + m[1]
	}
	switch m[2] {
	case "mapping values are not allowed in this context",
		"did not find expected key",
		"could not find expected ':'",
		"did not find expected ',' or '}'",
		"did not find expected ',' or ']'",
		"did not find expected node content",
		"did not find expected '-' indicator",
		"found character that cannot start any token",
		"found a tab character that violates indentation",
		"found unexpected end of stream":
		b.abandon(name, fmt.Errorf("not YAML: %s (a text with special characters needs quotes)", m[2]))
	default:
		b.abandon(name, errors.New("not YAML (a text with special characters needs quotes)"))
	}
}
