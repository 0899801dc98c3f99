package mysqllock

import (
	"context"
	"database/sql"
	"time"

	"github.com/golocker/locker/record"
)

// page is how many rows of the index a request of List looks at.
const page = 100

// List implements [record.Lister], by the index. It takes no locks of the server, unlike Get: it would hold up the
// writers of a page while it waits for one row of it. So a proxy may send it to a replica, which refuses it if it is
// read only.
func (s *Store) List(ctx context.Context, prefix, from string) (all []record.Listed, next string, err error) {
	err = s.use(ctx, func(c *sql.Conn) error {
		all = nil
		statement := s.sql("SELECT name, record, " + unfit + ", " + micros +
			" FROM @table WHERE name > ? AND name >= ? AND name < ? ORDER BY name LIMIT ?")
		rows, err := c.QueryContext(ctx, statement, []byte(from), []byte(prefix), []byte(prefix+"\xff"), page)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var r record.Listed
			var reason uint16
			var now int64
			if err := rows.Scan(&r.Name, &r.Text, &reason, &now); err != nil {
				return err
			}
			record.Tell(ctx, time.UnixMicro(now))
			if err := refusal(reason); err != nil {
				return err
			}
			all = append(all, r)
		}
		if err := rows.Err(); err != nil || len(all) > 0 {
			return err
		}
		return s.fit(ctx, c)
	})
	if err != nil {
		return nil, "", err
	}
	if len(all) == page {
		next = all[page-1].Name
	}
	return all, next, nil
}
