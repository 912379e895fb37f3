/* gate.h - a gate makes a lane wait for work outside lanes: the n-th pass waits for the n-th
   opening. Unlike an event it counts, so the two sides may be any number of steps apart. */
#pragma once

#include "lane.h"

typedef struct zp_gate {
    pthread_mutex_t lock;
    pthread_cond_t opens;
    size_t opened, passed;
    int stays; /* the gate stays open */
} zp_gate;

ZP_UNUSED static void zp_gate_init(zp_gate *g) {
    memset(g, 0, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->opens, NULL);
}
/* Uses only the gate, so a thread of the device's driver may call it. */
ZP_UNUSED static void zp_gate_open(void *gate) {
    zp_gate *g = (zp_gate *)gate;
    pthread_mutex_lock(&g->lock);
    g->opened++;
    pthread_cond_broadcast(&g->opens);
    pthread_mutex_unlock(&g->lock);
}
/* Returns 1 if the gate was abandoned; the work that it waited for may not be done. */
ZP_UNUSED static int zp_gate_pass(zp_gate *g) {
    pthread_mutex_lock(&g->lock);
    g->passed++;
    while (g->opened < g->passed && !g->stays) pthread_cond_wait(&g->opens, &g->lock);
    const int stays = g->stays;
    pthread_mutex_unlock(&g->lock);
    return stays;
}
ZP_UNUSED static void zp_gate_abandon(zp_gate *g) {
    pthread_mutex_lock(&g->lock);
    g->stays = 1;
    pthread_cond_broadcast(&g->opens);
    pthread_mutex_unlock(&g->lock);
}
ZP_UNUSED static void zp_gate_close(zp_gate *g) {
    pthread_cond_destroy(&g->opens);
    pthread_mutex_destroy(&g->lock);
}
