/*
 * A wall clock that a test can move: preload this into a redis-server, a postgres or a mariadbd.
 *
 * The file named by CLOCKSHIFT holds two numbers: by how many microseconds the clock is ahead, and by how many parts
 * per million it runs fast from when the file was read first with that content. Redis and PostgreSQL ask gettimeofday
 * and time for wall time, so only these are replaced; clock_gettime, which allocators and timers use, stays true.
 * MariaDB asks clock_gettime, and waits until times of that clock: with CLOCKSHIFT_GETTIME, these are replaced, too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t now_us(clockid_t clock)
{
	struct timespec t;
	syscall(SYS_clock_gettime, clock, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Redis nearly always asks for wall time from one thread at a time. A torn read would be a glitch of microseconds. */
static volatile int64_t ahead, fast, since, looked = -1000000;

static int64_t shifted_us(void)
{
	int64_t mono = now_us(CLOCK_MONOTONIC);
	const char *name = getenv("CLOCKSHIFT");
	if (name && mono - looked >= 2000) {
		FILE *f = fopen(name, "re");
		long long a, r;
		looked = mono;
		if (f) {
			if (fscanf(f, "%lld %lld", &a, &r) == 2 && (a != ahead || r != fast)) {
				ahead = a;
				fast = r;
				since = mono;
			}
			fclose(f);
		}
	}
	return now_us(CLOCK_REALTIME) + ahead + (mono - since) * fast / 1000000;
}

int gettimeofday(struct timeval *tv, void *tz)
{
	int64_t us = shifted_us();
	(void)tz;
	tv->tv_sec = us / 1000000;
	tv->tv_usec = us % 1000000;
	return 0;
}

time_t time(time_t *t)
{
	time_t s = shifted_us() / 1000000;
	if (t)
		*t = s;
	return s;
}

static int all(void) { return getenv("CLOCKSHIFT") && getenv("CLOCKSHIFT_GETTIME"); }

int clock_gettime(clockid_t clock, struct timespec *t)
{
	int64_t us;
	if (clock != CLOCK_REALTIME || !all())
		return syscall(SYS_clock_gettime, clock, t);
	us = shifted_us();
	t->tv_sec = us / 1000000;
	t->tv_nsec = us % 1000000 * 1000;
	return 0;
}

/* A wait lasts as long as it was meant to, although the clock is moved meanwhile. */
int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
	static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
	struct timespec t = *until;
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
	if (all() && t.tv_sec > 1000000000) { /* and not a time since the start of the machine */
		int64_t us = (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000 - (shifted_us() - now_us(CLOCK_REALTIME));
		t.tv_sec = us / 1000000;
		t.tv_nsec = us % 1000000 * 1000;
	}
	return real(cond, mutex, &t);
}
