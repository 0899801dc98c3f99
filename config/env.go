package config

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

const envURL = "LOCKER_URL"

// Overlay applies the variables in environ, such as os.Environ(), to c and checks the result as [Config.Validate] does.
// If anything is wrong it reports all of it and leaves c as it was.
func (c *Config) Overlay(environ []string) error {
	b := newBuilder(c.clone())
	b.environ(environ)
	done, err := b.finish()
	if err == nil {
		*c = *done
	}
	return err
}

// environ reads the variables into b. An empty one counts as not set: that is what deployment tools make of a reference
// to nothing.
func (b *builder) environ(environ []string) {
	vars := make(map[string]string)
	for _, kv := range environ {
		name, v, _ := strings.Cut(kv, "=")
		if v = trimmed(name, v); v != "" {
			vars[name] = v
		}
	}
	if raw := vars[envURL]; raw != "" {
		fresh := newBuilder(new(Config))
		fresh.problems = b.problems
		*b = *fresh
		b.url(raw, envURL+": ")
	}
	// the password of the environment replaces the one of the file, in whichever way they are given
	for _, k := range kinds() {
		switch password, file := k.field("password"), k.field("password_file"); {
		case password == nil || file == nil:
		case vars[password.env()] != "":
			file.in(b.c).SetZero()
		case vars[file.env()] != "":
			password.in(b.c).SetZero()
		}
	}
	for _, f := range fields() {
		switch name := f.env(); {
		case name == "" || vars[name] == "":
		case !f.literal() && quoted(vars[name]):
			b.fail(f.path, name, errQuoted)
		default:
			b.set(f.path, vars[name], name)
		}
	}
	b.misspelt(vars)
}

// trimmed returns the value of a variable without the white space around it, which files and shells add; of a password,
// without newlines at its end, as that of a password_file.
func trimmed(name, v string) string {
	i := slices.IndexFunc(fields(), func(f *field) bool { return f.literal() && f.env() == name })
	switch {
	case i < 0:
		return strings.TrimSpace(v)
	case fields()[i].isSecret():
		return strings.TrimRight(v, "\r\n")
	default:
		return v
	}
}

const quotes = `"'`

// quoted says whether v is in quotes that somebody expected a shell to remove.
func quoted(v string) bool {
	return len(v) > 1 && strings.ContainsAny(v[:1], quotes) && v[len(v)-1] == v[0]
}

// misspelt reports the variables that were meant for this package, but have no name it knows.
func (b *builder) misspelt(vars map[string]string) {
	known := []string{envURL}
	for _, f := range fields() {
		if name := f.env(); name != "" {
			known = append(known, name)
		}
	}
	var wrong []string
	for name, v := range vars {
		section := envSection(name)
		ours := section != "" || nearest(name, known) != ""
		why := misplaced[strings.ToLower(strings.TrimPrefix(name, cmp.Or(section, "LOCKER_")))]
		switch {
		case !strings.HasPrefix(name, "LOCKER_") || slices.Contains(known, name):
		case why != nil:
			b.report(name, why)
		case ours && !kubernetes(name, v):
			wrong = append(wrong, name)
		}
	}
	slices.Sort(wrong)
	for _, name := range wrong {
		// Suggest only variables of the same section.
		b.report("environment", unknown("variable", name, slices.DeleteFunc(slices.Clone(known), func(k string) bool {
			return envSection(k) != envSection(name)
		})))
	}
}

// envSection returns the beginning that the variables of a section have in common, if name has it.
func envSection(name string) string {
	for _, section := range sectionNames() {
		section = "LOCKER_" + strings.ToUpper(section) + "_"
		if strings.HasPrefix(name, section) {
			return section
		}
	}
	return ""
}

var kubernetesRE = regexp.MustCompile(
	`_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$`)

// kubernetes recognises what Kubernetes puts into the environment of every pod for a service called locker or
// locker-redis.
func kubernetes(name, v string) bool {
	return kubernetesRE.MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(v, "://")
}
