/* auto_print.c - the table of auto.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "auto.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A text that grows at its end. */
typedef struct auto_text {
    char *at;
    size_t used, bytes;
} auto_text;

__attribute__((format(printf, 2, 3))) static void auto_add(auto_text *t, const char *format, ...) {
    va_list values;
    if (t->used >= t->bytes) return;
    va_start(values, format);
    t->used += (size_t)vsnprintf(t->at + t->used, t->bytes - t->used, format, values);
    va_end(values);
}

/* Writes bytes with a unit, and three digits. */
static void auto_size(double bytes, char text[24]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int i = 0;
    for (; bytes >= 1024 && i < 5; i++) bytes /= 1024;
    (void)snprintf(text, 24, "%.*f %s", bytes < 10 ? 2 : bytes < 100 ? 1 : 0, bytes, units[i]);
}

/* Names the tiers and what a plan loses. */
static const char *auto_title(const auto_family *f, char text[AUTO_NAME + 32]) {
    static const char *const states[] = {"", ", -os bf16", ", -os 8bit"};
    const auto_choice *c = &f->best.choice;
    (void)snprintf(
        text, AUTO_NAME + 32, "%s%s%s%s", f->tiers, f->lossy ? states[c->state_type] : "",
        f->lossy && c->weight_bits ? ", -qw 8" : "", f->lossy && c->gradient_bits ? ", -qg 4" : "");
    return text;
}

static void auto_add_plan(auto_text *t, const char *name, const auto_family *f) {
    const auto_plan *p = &f->best;
    char device[24], sent[24], moved[24], title[AUTO_NAME + 32];
    auto_size((double)p->device_bytes, device);
    auto_size((double)p->sent_bytes, sent);
    auto_size((double)p->moved_bytes, moved);
    auto_add(t, "%-10s %5d  %-34s %5d %5d  %d %9.4g ms: %.4g + %.4g + %.4g\n", name,
             p->choice.stage, auto_title(f, title), p->choice.batch, p->choice.micro_steps,
             p->choice.recompute, 1e3 * p->step.all, 1e3 * p->step.compute, 1e3 * p->step.send,
             1e3 * p->step.update);
    auto_add(t, "%-10s        %s of a rank", "", device);
    if (p->host_bytes) {
        auto_size((double)p->host_bytes, device);
        auto_add(t, ", %s of CPU memory", device);
    }
    if (p->file_bytes) {
        auto_size((double)p->file_bytes, device);
        auto_add(t, ", %s in files", device);
    }
    auto_add(t, "; sends %s a step", sent);
    if (p->moved_bytes) auto_add(t, ", moves %s to and from files", moved);
    auto_add(t, "\n");
}

/* Writes which part of the step costs the time that a plan takes in addition to the choice. */
static void auto_add_slower(auto_text *t, const auto_plan *p, const auto_plan *best) {
    const double more[] = {p->step.compute - best->step.compute, p->step.send - best->step.send,
                           p->step.update - best->step.update};
    char there[24], here[24];
    int most = 0;
    for (int i = 1; i < 3; i++)
        if (more[i] > more[most]) most = i;
    auto_add(t, "%.4g ms, %.4g times as long: ", 1e3 * p->step.all, p->step.all / best->step.all);
    if (most == 0) {
        auto_add(t, "computing takes %.4g ms more (-b %d, -r %d)\n", 1e3 * more[0], p->choice.batch,
                 p->choice.recompute);
        return;
    }
    const uint64_t a = most == 1 ? p->sent_bytes : p->moved_bytes;
    const uint64_t b = most == 1 ? best->sent_bytes : best->moved_bytes;
    auto_size((double)a, there);
    auto_size((double)b, here);
    auto_add(t, "%s takes %.4g ms more", most == 1 ? "sending" : "the update", 1e3 * more[most]);
    if (a > b) auto_add(t, " (%s instead of %s)", there, here);
    auto_add(t, "\n");
}

static int auto_as_fast(const auto_family *f, const auto_family *best) {
    return f->fits && f->best.step.all - best->best.step.all <= 1e-4 * best->best.step.all;
}

static void auto_add_full(auto_text *t, const auto_family *f, const plan_limits *most) {
    const struct {
        const char *name;
        double bytes, limit;
    } tier[] = {{"memory", (double)f->best.device_bytes, most->device},
                {"CPU memory", (double)f->best.host_bytes, most->host},
                {"space in files", (double)f->best.file_bytes, most->file}};
    int worst = 0;
    char need[24], have[24];
    for (int i = 1; i < 3; i++) {
        const double a = tier[i].limit > 0 ? tier[i].bytes / tier[i].limit : 0;
        const double b = tier[worst].limit > 0 ? tier[worst].bytes / tier[worst].limit : 0;
        if (a > b) worst = i;
    }
    auto_size(tier[worst].bytes, need);
    auto_size(tier[worst].limit, have);
    auto_add(t, "does not fit: at least %s of %s, and the limit is %s\n", need, tier[worst].name,
             have);
}

/* Writes the choice, the runner-up, and why the other families fall short. Those that are as fast
   share a line. */
static void auto_add_families(auto_text *t, const plan_request *r, const auto_result *found) {
    const auto_family *best = &found->family[0];
    char title[AUTO_NAME + 32];
    int equal = 0;
    for (int i = 0; i < 2 && i < found->fitting; i++)
        auto_add_plan(t, i ? "runner-up" : "choice", &found->family[i]);
    for (int i = 1; i < found->fitting; i++) {
        const auto_family *f = &found->family[i];
        if (!auto_as_fast(f, best)) continue;
        auto_add(t, "%s stage %d, %s",
                 equal++ ? ";" : "           as fast, and not simpler:", f->best.choice.stage,
                 auto_title(f, title));
    }
    if (equal) auto_add(t, "\n");
    for (int i = 0; i < found->families; i++) {
        const auto_family *f = &found->family[i];
        if ((i == 0 && f->fits) || auto_as_fast(f, best) || (i > 1 && f->lossy)) continue;
        auto_add(t, "%11sstage %d, %s: ", "", f->best.choice.stage, auto_title(f, title));
        if (f->fits)
            auto_add_slower(t, &f->best, &best->best);
        else if (f->unknown[0])
            auto_add(t, "fits, but its time is not known: %s\n", f->unknown);
        else
            auto_add_full(t, f, &r->most);
    }
}

void auto_print_csv(const plan_request *r, const auto_result *found, FILE *csv) {
    (void)fputs("stage,offload,fits,seconds,compute,send,update,device_bytes,host_bytes,"
                "file_bytes,sent_bytes,moved_bytes,flags\n",
                csv);
    for (int i = 0; i < found->families; i++) {
        const auto_family *f = &found->family[i];
        const auto_plan *p = &f->best;
        char flags[AUTO_FLAGS], title[AUTO_NAME + 32];
        auto_flags(r, &p->choice, flags);
        fprintf(csv, "%d,\"%s\",%d,%.6g,%.6g,%.6g,%.6g,%llu,%llu,%llu,%llu,%llu,%s\n",
                p->choice.stage, auto_title(f, title), f->fits, p->step.all, p->step.compute,
                p->step.send, p->step.update, (unsigned long long)p->device_bytes,
                (unsigned long long)p->host_bytes, (unsigned long long)p->file_bytes,
                (unsigned long long)p->sent_bytes, (unsigned long long)p->moved_bytes, flags);
    }
}

void auto_print_table(const plan_request *r, const auto_result *found, const char *program,
                      const char *typed, char *text, size_t bytes) {
    auto_text t = {text, 0, bytes};
    char flags[AUTO_FLAGS], size[24];
    text[0] = 0;
    auto_add(&t, "-z auto: %lld tokens per step on %d rank%s; %lld of %lld plans fit",
             (long long)found->step_tokens, r->ranks, r->ranks > 1 ? "s" : "",
             (long long)found->fit, (long long)found->legal);
    auto_size(r->most.device, size);
    if (r->most.device > 0) auto_add(&t, " into %s of a rank", size);
    auto_add(&t, "; searched in %.2g s\n", found->seconds);
    if (found->fitting > 0)
        auto_add(&t, "           stage  %-34s    -b micro -r  step: compute + send + update\n",
                 "offload");
    auto_add_families(&t, r, found);
    if (found->fitting == 0) {
        auto_add(&t, "no plan can be chosen: use more ranks or more memory%s\n",
                 r->model.is_gpt2 ? ", shorter sequences (-t), or the vocabulary in tiles (-zl)"
                                  : "");
        return;
    }
    auto_flags(r, &found->family[0].best.choice, flags);
    auto_add(&t, "repeat: %s%s%s %s\n", program, typed[0] ? " " : "", typed, flags);
}
