/*
 * A disk that a test can fill: preload this into a server.
 *
 * While the file named by FULLDISK exists, it holds the path of a directory, and no file below that can grow: writes
 * beyond the end of a file fail with ENOSPC, as in a file system without room.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* full says whether the file cannot grow to that end. */
static int full(int fd, off_t end)
{
	const char *name = getenv("FULLDISK");
	char directory[4096], link[64], path[4096];
	struct stat st;
	ssize_t n;
	int list;

	if (!name || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || end <= st.st_size)
		return 0;
	list = open(name, O_RDONLY | O_CLOEXEC);
	if (list < 0)
		return 0;
	n = read(list, directory, sizeof directory - 1);
	close(list);
	if (n <= 0)
		return 0;
	directory[n] = 0;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof path - 1);
	if (n <= 0)
		return 0;
	path[n] = 0;
	n = strlen(directory);
	return strncmp(path, directory, n) == 0 && path[n] == '/';
}

static ssize_t refuse(void)
{
	errno = ENOSPC;
	return -1;
}

static off_t total(const struct iovec *v, int n)
{
	off_t sum = 0;
	while (n-- > 0)
		sum += v[n].iov_len;
	return sum;
}

ssize_t pwrite(int fd, const void *b, size_t n, off_t at)
{
	return full(fd, at + n) ? refuse() : syscall(SYS_pwrite64, fd, b, n, at);
}

ssize_t pwrite64(int fd, const void *b, size_t n, off64_t at)
{
	return pwrite(fd, b, n, at);
}

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at)
{
	return full(fd, at + total(v, n)) ? refuse() : syscall(SYS_pwritev, fd, v, n, at, 0L);
}

ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t at)
{
	return pwritev(fd, v, n, at);
}

ssize_t write(int fd, const void *b, size_t n)
{
	off_t at = lseek(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
	return at >= 0 && full(fd, at + n) ? refuse() : syscall(SYS_write, fd, b, n);
}

int posix_fallocate(int fd, off_t at, off_t n)
{
	if (full(fd, at + n))
		return ENOSPC;
	return syscall(SYS_fallocate, fd, 0, at, n) == 0 ? 0 : errno;
}

int posix_fallocate64(int fd, off64_t at, off64_t n)
{
	return posix_fallocate(fd, at, n);
}
