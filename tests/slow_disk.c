/* A disk on which each new file below the folder SLOW_UNDER takes SLOW_S seconds: for LD_PRELOAD. Rust's, C++'s and
   Python's files all come through here. With SLOW_WHILE only as long as there is such a file. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_if_new(const char *path, int flags) {
    const char *under = getenv("SLOW_UNDER"), *seconds = getenv("SLOW_S"), *during = getenv("SLOW_WHILE");
    if (during && access(during, F_OK)) return;
    if ((flags & O_CREAT) && under && seconds && strstr(path, under)) usleep((useconds_t)(atof(seconds) * 1e6));
}

#define SLOW(name, parameters, ...)                                          \
    int name parameters {                                                    \
        static int(*real) parameters;                                        \
        if (!real) real = dlsym(RTLD_NEXT, #name);                           \
        va_list rest;                                                        \
        va_start(rest, flags);                                               \
        mode_t mode = va_arg(rest, mode_t);                                  \
        va_end(rest);                                                        \
        wait_if_new(path, flags);                                            \
        return real(__VA_ARGS__, mode);                                      \
    }

SLOW(open, (const char *path, int flags, ...), path, flags)
SLOW(open64, (const char *path, int flags, ...), path, flags)
SLOW(openat, (int folder, const char *path, int flags, ...), folder, path, flags)
SLOW(openat64, (int folder, const char *path, int flags, ...), folder, path, flags)
