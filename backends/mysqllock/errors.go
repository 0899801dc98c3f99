package mysqllock

import (
	"errors"
	"fmt"

	client "github.com/go-sql-driver/mysql"

	"github.com/golocker/locker/record"
)

// Numbers of errors of the server.
const (
	duplicateKey    = 1062
	noTable         = 1146
	unknownVariable = 1193
	deadlock        = 1213
	optionPrevents  = 1290
	logsStatements  = 1598
)

// readOnly has the errors of servers, users and sessions that may not write.
var readOnly = map[uint16]bool{optionPrevents: true, logsStatements: true, 1792: true, 1836: true}

// advice says what to do about errors of the server.
var advice = map[uint16]string{
	1040: "raise max_connections of the server, or lower max_conns",
	1044: "grant the user its rights on this database, or name another",
	1045: "check the user and the password",
	1047: "this node of a Galera cluster has lost the others, or is joining them: use another",
	1049: "name a database that exists, or create it",
	1054: "this table is not one of locks: name another",
	1129: "execute FLUSH HOSTS on the server, and raise max_connect_errors: connections to it were cut off",
	1142: "the user needs the rights to SELECT, INSERT and UPDATE on the table, which has to exist",
	1205: "another session has locked the row or the table: look for a transaction that is not committed, or a " +
		"backup",
	logsStatements: "set binlog_format to ROW, or to MIXED: a replica misses these statements",
	optionPrevents: writable, 1792: writable, 1836: writable,
}

const writable = "locks need a server that takes writes, and not a replica: name the primary"

// number returns the number of an error that the server has answered, or 0.
func number(err error) uint16 {
	var answer *client.MySQLError
	if errors.As(err, &answer) {
		return answer.Number
	}
	return 0
}

// explain adds to an error of the server what to do about it.
func (s *Store) explain(err error) error {
	what := advice[number(err)]
	switch {
	case err == nil, errors.Is(err, record.ErrConflict):
		return err
	case number(err) == noTable:
		what = "make the table by mysqllock.Migrate, or by this statement:\n" + s.statement()
	case what == "":
		return fmt.Errorf("mysql: %w", err)
	}
	return fmt.Errorf("mysql: %w: %s", err, what)
}
