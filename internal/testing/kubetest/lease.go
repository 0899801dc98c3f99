//go:build unix

package kubetest

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	group = "coordination.k8s.io"
	root  = "/apis/" + group + "/v1/namespaces/"
)

// object is a Lease, or a part of one, as JSON has it.
type object struct {
	fields map[string]any
	at     time.Time // when it was stored
}

func newObject(text []byte) (object, error) {
	o := object{}
	if err := json.Unmarshal(text, &o.fields); err != nil {
		return object{}, err
	}
	if o.fields["kind"] != "Lease" || o.fields["apiVersion"] != group+"/v1" || o.meta() == nil {
		return object{}, fmt.Errorf("not a Lease of %s/v1 with metadata: %s", group, text)
	}
	return o, nil
}

func (o object) text() string {
	text, _ := json.Marshal(o.fields) // what came from JSON
	return string(text)
}

func (o object) meta() map[string]any {
	m, _ := o.fields["metadata"].(map[string]any)
	return m
}

func (o object) metadata(field string) string {
	text, _ := o.meta()[field].(string)
	return text
}

func (o object) name() string      { return o.metadata("name") }
func (o object) namespace() string { return o.metadata("namespace") }

// number returns a field of the spec.
func (o object) number(field string) (n float64, ok bool) {
	spec, _ := o.fields["spec"].(map[string]any)
	n, ok = spec[field].(float64)
	return n, ok
}

// watchedKey is the answer to a request to watch the Lease of that namespace and name.
type watchedKey string

// call is a request.
type call struct {
	method, namespace, name string
	object                  object // to be stored
	list                    *listed
}

// parse reads a request. Its name is that of the object, if the address has none.
func parse(r *http.Request, body []byte) (call, *Status) {
	rest, ok := strings.CutPrefix(r.URL.Path, root)
	namespace, rest, _ := strings.Cut(rest, "/")
	kind, name, named := strings.Cut(rest, "/")
	if name, watch := watched(r); watch && ok && kind == "leases" && !named {
		return call{method: "WATCH", namespace: namespace, name: name}, nil
	}
	if ok && kind == "leases" && !named && r.Method == http.MethodGet && r.URL.Query().Get("watch") == "" {
		return call{method: "LIST", namespace: namespace, list: listOf(r)}, nil
	}
	if !ok || kind != "leases" || named == (r.Method == http.MethodPost) || strings.Contains(name, "/") {
		return call{}, &Status{Code: http.StatusNotFound, Message: "404 page not found", Page: true}
	}
	c := call{method: r.Method, namespace: namespace, name: name}
	switch r.Method {
	case http.MethodGet:
		return c, nil
	case http.MethodPost, http.MethodPut:
	default:
		return call{}, &Status{Code: http.StatusMethodNotAllowed, Reason: "MethodNotAllowed", Kind: "leases",
			Message: "the server does not allow this method on the requested resource"}
	}
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != "application/json" {
		return call{}, &Status{Code: http.StatusUnsupportedMediaType, Reason: "UnsupportedMediaType",
			Message: "the body of the request was in an unknown format - accepted media types include: application/json"}
	}
	var err error
	if c.object, err = newObject(body); err != nil {
		return call{}, badRequest(err.Error())
	}
	if own := c.object.namespace(); own != "" && own != namespace {
		return call{}, badRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	c.object.meta()["namespace"] = namespace
	switch own := c.object.name(); {
	case named && own != name:
		return call{}, badRequest(fmt.Sprintf(
			"the name of the object (%s) does not match the name on the URL (%s)", own, name))
	case own == "":
		return call{}, badRequest("name must be provided")
	}
	c.name = c.object.name()
	return c, nil
}

func badRequest(message string) *Status {
	return &Status{Code: http.StatusBadRequest, Reason: "BadRequest", Message: message}
}

// about returns an error about the object of a call.
func (c call) about(code int, reason, message string) *Status {
	return &Status{Code: code, Reason: reason, Kind: "leases", Name: c.name, Message: message}
}

func (c call) conflict(why string) *Status {
	return c.about(http.StatusConflict, "Conflict",
		fmt.Sprintf("Operation cannot be fulfilled on leases.%s %q: %s", group, c.name, why))
}

func (c call) invalid(why string) *Status {
	return c.about(http.StatusUnprocessableEntity, "Invalid",
		fmt.Sprintf("Lease.%s %q is invalid: %s", group, c.name, why))
}

// execute does what a request asks for. Call with mu held.
func (s *Server) execute(c call) (status int, answer any) {
	old, exists := s.leases[c.namespace+"/"+c.name]
	switch {
	case c.method == "WATCH":
		return http.StatusOK, watchedKey(c.namespace + "/" + c.name)
	case c.list != nil:
		return s.list(c)
	case c.method == http.MethodGet && exists:
		return http.StatusOK, old.fields
	case c.method == http.MethodGet:
		return 0, c.about(http.StatusNotFound, "NotFound", fmt.Sprintf("leases.%s %q not found", group, c.name))
	case c.namespace != Namespace && c.namespace != "default":
		return 0, &Status{Code: http.StatusNotFound, Reason: "NotFound", Kind: "namespaces", Name: c.namespace,
			Message: fmt.Sprintf("namespaces %q not found", c.namespace)}
	case c.method == http.MethodPost && exists:
		return 0, c.about(http.StatusConflict, "AlreadyExists",
			fmt.Sprintf("leases.%s %q already exists", group, c.name))
	case c.method == http.MethodPost && c.object.metadata("resourceVersion") != "":
		return 0, c.about(http.StatusInternalServerError, "InternalError",
			"Internal error occurred: resourceVersion should not be set on objects to be created")
	}
	if c.method == http.MethodPut {
		if refused := c.refused(old, exists); refused != nil {
			return 0, refused
		}
	}
	if why := c.object.flaw(); why != "" {
		return 0, c.invalid(why)
	}
	if exists {
		return http.StatusOK, s.update(c.object, old).fields
	}
	// A PUT creates a Lease, if it has no uid: that of a Lease which was deleted has to be refused.
	return http.StatusCreated, s.create(c.object).fields
}

// refused returns why a PUT must not be executed.
func (c call) refused(old object, exists bool) *Status {
	uid, version := c.object.metadata("uid"), c.object.metadata("resourceVersion")
	existing := ""
	if exists {
		existing = old.metadata("uid")
	}
	switch {
	case uid != "" && uid != existing:
		return c.conflict(fmt.Sprintf("StorageError: invalid object, Code: 4, Key: /registry/leases/%s/%s, "+
			"ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: %s, UID in object meta: %s",
			c.namespace, c.name, uid, existing))
	case exists && version == "":
		return c.invalid(`metadata.resourceVersion: Invalid value: 0: must be specified for an update`)
	case exists && version != old.metadata("resourceVersion"):
		return c.conflict("the object has been modified; please apply your changes to the latest version and try again")
	}
	return nil
}

var subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// flaw returns what is wrong with an object.
func (o object) flaw() string {
	if name := o.name(); len(name) > 253 || !subdomain.MatchString(name) {
		return fmt.Sprintf("metadata.name: Invalid value: %q: a lowercase RFC 1123 subdomain must consist of lower case "+
			"alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character", name)
	}
	if n, ok := o.number("leaseDurationSeconds"); ok && n <= 0 {
		return fmt.Sprintf("spec.leaseDurationSeconds: Invalid value: %v: must be greater than 0", n)
	}
	if n, ok := o.number("leaseTransitions"); ok && n < 0 {
		return fmt.Sprintf("spec.leaseTransitions: Invalid value: %v: must be greater than or equal to 0", n)
	}
	return ""
}

// create stores a new object. Call with mu held.
func (s *Server) create(o object) object {
	s.revision++
	m := o.meta()
	m["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	m["uid"] = fmt.Sprintf("00000000-0000-4000-8000-%012d", s.revision)
	return s.store(o)
}

// update stores an object in the place of old, unless they are equal. Call with mu held.
func (s *Server) update(o, old object) object {
	for _, field := range []string{"uid", "creationTimestamp", "resourceVersion"} {
		o.meta()[field] = old.meta()[field]
	}
	if reflect.DeepEqual(o.fields, old.fields) {
		return old
	}
	s.revision++
	return s.store(o)
}

func (s *Server) store(o object) object {
	o.meta()["resourceVersion"] = strconv.Itoa(s.revision)
	o.at = time.Now()
	kind := "ADDED"
	if _, ok := s.leases[o.namespace()+"/"+o.name()]; ok {
		kind = "MODIFIED"
	}
	s.leases[o.namespace()+"/"+o.name()] = o
	s.tell(kind, o)
	return o
}
