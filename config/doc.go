// Package config makes a [locker.Locker] from a URL, a YAML file and the environment. The operator of a program chooses
// the store and the Redis client for its locks by changing one word:
//
//	l, err := config.Open(ctx, "redis+rueidis://host:6379?ttl=10s")
//
// Redis drivers are not linked in by this package. A program imports the drivers that it supports:
//
//	import _ "github.com/golocker/locker/drivers/all"
//
// # URLs
//
//	memory:                                  in this process; one store per prefix
//	redis://[user[:password]@]host[:6379][/db]
//	rediss://…                               the same with TLS
//	redis+sentinel://[user[:password]@]sentinel[:26379],sentinel[:26379],…/master[/db]
//	redis+cluster://[user[:password]@]host[:6379],host[:6379],…
//	rediss+sentinel://…  rediss+cluster://…  the same with TLS
//	valkey://…  valkeys+cluster://…          valkey instead of redis in any of these
//	unix://[user[:password]@]/path/of.sock
//	redlock://[user[:password]@]host[:6379],host[:6379],…[/db]
//	redlocks://…                             the same with TLS
//
// The driver is named after a plus sign, as in redis+redigo://… or redlocks+rueidis://…, or by the parameter
// driver. A host must be given: a program that fell back to its own machine would lock for itself alone. In the
// password, the characters @ : / ? # % are written %40 %3A %2F %3F %23 %25. White space around a URL does not count.
//
// redis+sentinel:// is the master that the sentinels at these addresses name, and redis+cluster:// is the Redis Cluster
// that has these nodes. The driver comes last, as in redis+sentinel+rueidis://…; redigo supports neither. User and
// password are for the Redis servers. With valkey instead of redis, the driver is "valkey" if the program has linked it
// and the URL names no other.
//
// redlock:// is a quorum of independent servers: see package redlock. User and password are written once, before the
// first host, and hold for all, as the parameters do; a comma in them is written %2C. A unix socket takes the place of
// a host if its slashes are written %2F.
//
// Parameters, all optional:
//
//	ttl            lease time of calls that do not choose one, such as 10s or 500ms
//	patience       how long a waiting Lock tolerates a failing store; 6s if not given, see locker.Patience
//	label          names the holders of locks for people; host and process ID if not given, and it may be empty, see
//	               locker.Label
//	no_local_handover    true: the store hands over locks within the process, too, see locker.NoLocalHandover
//	prefix         put before every key; lock: if not given, and it may be empty
//	driver         goredis, redigo, rueidis, valkey, or any other that is registered
//	db             number of the Redis database
//	timeout        bound of dialling and of one exchange; 5s if not given
//	password_file  path of a file with the password
//	guard          longest TTL and MinHold of all locks, such as 30s: switches on the restart guard, see
//	               redlock.Guard and single.Guard; not for memory
//	replicas       how many replicas have to confirm a lock, see single.WaitReplicas; 0 if not given; only for one Redis
//	               (redis, rediss, unix)
//	replicas_timeout    how long to wait for them; 1s if not given
//	budget         how long one operation waits for a majority; 1s if not given; for redlock and redlocks
//	log            debug, info or warn: lowest level of log messages, see package middleware/logging; also warns of
//	               settings of the servers that weaken a promise, see single.Logger
//	audit          path of a file for an audit log, see package middleware/audit
//	audit_hash_keys    true: hashes of keys instead of keys in the audit log
//	tracing        true or false: whether locks are traced and measured, if the program imports config/tracing
//	retry          true or false: whether operations that failed because of the store are retried
//	retry_for      for how long; 1m if not given. This and the next parameters switch retry on, unless retry=false
//	retry_base_delay, retry_max_delay  the longest first pause, and the longest of all; 50ms and 2s if not given
//	retry_per_second    retries per second of all calls together; 100 if not given
//	retry_on_held  true or false: whether TryLock repeats its attempt while the lock is held
//	sentinel_username, sentinel_password_file    user and password for the sentinels, if they need any; with +sentinel
//	tls_ca_file, tls_cert_file, tls_key_file, tls_server_name, tls_min_version    for rediss and redlocks: see [TLS]
//
// # Other backends
//
// memory, redis and redlock are registered by this package. A program that imports another backend's package can name
// that in the same three ways, by the scheme that the package registers: see [Register].
//
// # Files
//
// [Load] reads YAML (so JSON too). Relative paths in it are relative to the working directory. Anchors, aliases and
// merge keys (<<) work; fields whose names begin with x- are ignored, so that they can hold what others refer to.
//
//	backend: redis            # or memory, or redlock; sections of the others may stay, unused
//	ttl: 10s
//	prefix: "lock:"
//	patience: 6s              # how long a waiting Lock tolerates a failing store
//	label: orders             # names the holders of locks; host and process ID without it
//	no_local_handover: true   # the store hands over locks within the process, too
//	log: info                 # debug, info or warn; locks are not logged without it
//	audit: /var/log/orders/locks.jsonl   # an audit log; none without it
//	audit_hash_keys: false    # hashes of keys instead of keys in it
//	tracing: true             # if the program imports config/tracing
//	retry:                    # retry: {} is with all defaults
//	  for: 1m
//	  base_delay: 50ms
//	  max_delay: 2s
//	  per_second: 100
//	  on_held: false
//	redis:
//	  driver: goredis
//	  addr: redis.internal:6379      # or the absolute path of a socket
//	  # sentinel:                    # instead of addr
//	  #   master: mymaster
//	  #   addrs: [s1:26379, s2:26379, s3:26379]
//	  #   username: watcher          # of the sentinels
//	  #   password_file: /run/secrets/sentinel
//	  # cluster: {addrs: [h1, h2]}   # instead of addr
//	  username: locker
//	  password_file: /run/secrets/redis
//	  db: 0
//	  timeout: 5s
//	  guard: 30s                     # longest TTL and MinHold of all locks; no restart guard without it
//	  replicas: 1                    # how many replicas have to confirm a lock; none without it
//	  replicas_timeout: 500ms        # how long to wait for them
//	  tls:                           # tls: {} is TLS with the system's roots
//	    ca_file: /etc/ssl/redis-ca.pem
//	redlock:
//	  budget: 1s
//	  guard: 30s
//	  driver: goredis                # all fields of redis but addr and replicas, for each of the nodes
//	  username: locker
//	  password_file: /run/secrets/redis
//	  nodes:
//	    - {name: a, addr: 10.0.0.1:6379}
//	    - {name: b, addr: 10.0.1.1:6379}
//	    - {name: c, addr: 10.0.2.1:6379, driver: rueidis}
//
// A node can have its own driver, username, password, password_file and tls, which override those of the section. It
// can have a section sentinel instead of addr, which is not recommended: see [Node]. Errors and logs call the node by
// its name, or by its address if it has no name.
//
// # Environment
//
// The environment is read only if it is passed to Load or [Config.Overlay]. It overrides the file, and the file
// overrides the defaults.
//
//	LOCKER_URL                      replaces the whole file; the variables below override it
//	LOCKER_BACKEND  LOCKER_TTL  LOCKER_PREFIX  LOCKER_PATIENCE  LOCKER_LABEL  LOCKER_LOG
//	LOCKER_NO_LOCAL_HANDOVER (true or false)  LOCKER_TRACING (true or false)
//	LOCKER_AUDIT  LOCKER_AUDIT_HASH_KEYS (true or false)
//	LOCKER_RETRY (true or false)  LOCKER_RETRY_FOR  LOCKER_RETRY_BASE_DELAY  LOCKER_RETRY_MAX_DELAY
//	LOCKER_RETRY_PER_SECOND  LOCKER_RETRY_ON_HELD (true or false)
//	LOCKER_REDIS_DRIVER  LOCKER_REDIS_ADDR  LOCKER_REDIS_DB  LOCKER_REDIS_TIMEOUT  LOCKER_REDIS_GUARD
//	LOCKER_REDIS_REPLICAS  LOCKER_REDIS_REPLICAS_TIMEOUT
//	LOCKER_REDIS_SENTINEL_MASTER  LOCKER_REDIS_SENTINEL_ADDRS (s1,s2,s3)  LOCKER_REDIS_SENTINEL_USERNAME
//	LOCKER_REDIS_SENTINEL_PASSWORD  LOCKER_REDIS_SENTINEL_PASSWORD_FILE  LOCKER_REDIS_CLUSTER_ADDRS (h1,h2,h3)
//	LOCKER_REDIS_USERNAME  LOCKER_REDIS_PASSWORD  LOCKER_REDIS_PASSWORD_FILE
//	LOCKER_REDIS_TLS (true or false)  LOCKER_REDIS_TLS_CA_FILE  LOCKER_REDIS_TLS_CERT_FILE
//	LOCKER_REDIS_TLS_KEY_FILE  LOCKER_REDIS_TLS_SERVER_NAME  LOCKER_REDIS_TLS_MIN_VERSION
//	LOCKER_REDLOCK_NODES (h1,h2,h3, instead of all nodes of the file)  LOCKER_REDLOCK_BUDGET
//	LOCKER_REDLOCK_DRIVER and so on, all as for redis but the address and replicas
//
// A variable that is set but empty counts as not set. White space around a value does not count, except in
// LOCKER_PREFIX and passwords. Newlines at the end of a password do not count. An unknown name that begins with
// LOCKER_REDIS_, LOCKER_REDLOCK_ or LOCKER_RETRY_ is an error, and so is one that begins with LOCKER_ and is one typo
// away from one of these; other LOCKER_ variables are the program's own.
//
// # Mistakes and secrets
//
// Unknown names, repeated names, durations without a unit and values out of range are errors, and all errors are
// reported at once. An error names the field. Of what was written there, it repeats only names of backends, drivers and
// files, and times that are out of range. [Secret] masks itself wherever it is printed. So neither an error nor a
// printed configuration can carry a password into a log.
package config
