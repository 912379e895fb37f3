/* clocks.c - see clocks.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "clocks.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

void clocks_open(clocks *c) {
    c->least = -HUGE_VAL;
    c->most = HUGE_VAL;
}

void clocks_meet(clocks *c, double before, double zero, double after) {
    c->least = fmax(c->least, before - zero);
    c->most = fmin(c->most, after - zero);
}

double clocks_ahead(const clocks *c) { return (c->least + c->most) / 2; }
double clocks_within(const clocks *c) { return (c->most - c->least) / 2; }

static uint64_t clocks_hash(uint64_t hash, const char *text, ssize_t n) {
    for (ssize_t i = 0; i < n; i++) hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    return hash;
}

uint64_t clocks_identity(void) {
    char text[64];
    const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = file >= 0 ? read(file, text, sizeof text) : 0;
    if (file >= 0) (void)close(file);
    if (n <= 0) return 0;
    const uint64_t boot = clocks_hash(14695981039346656037u, text, n);
    n = readlink("/proc/self/ns/time", text,
                 sizeof text); /* a kernel without time namespaces has one clock */
    return clocks_hash(boot, text, n);
}
