// For tier_faults.py: reads or writes of the cache's entries are slow or fail, as TIER_FAULT says
// ("slow pread64", "eio pwrite64"), where no strace can inject that.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOW_US = 100000 };

static int is_entry(int file) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return strstr(path, ".kv") != NULL || strstr(path, ".part") != NULL;
}

// Whether a call fails; it is slow before that.
static int fails(const char *call, int file) {
  const char *fault = getenv("TIER_FAULT");
  if (fault == NULL || strstr(fault, call) == NULL || !is_entry(file)) return 0;
  if (strncmp(fault, "slow", 4) == 0) return usleep(SLOW_US), 0;
  errno = EIO;
  return 1;
}

ssize_t pread64(int file, void *to, size_t bytes, off_t at) {
  static ssize_t (*own)(int, void *, size_t, off_t);
  if (own == NULL) own = dlsym(RTLD_NEXT, "pread64");
  return fails("pread64", file) ? -1 : own(file, to, bytes, at);
}

ssize_t pwrite64(int file, const void *from, size_t bytes, off_t at) {
  static ssize_t (*own)(int, const void *, size_t, off_t);
  if (own == NULL) own = dlsym(RTLD_NEXT, "pwrite64");
  return fails("pwrite64", file) ? -1 : own(file, from, bytes, at);
}
