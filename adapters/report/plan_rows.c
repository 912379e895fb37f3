/* plan_rows.c - see plan_rows.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "plan_rows.h"

#include <stdio.h>
#include <string.h>

static const char *const plan_tiers[ZERO_TIERS] = {"device", "host", "file"};

static void plan_tier_rows(report *r, const zero_plan *p, const zero_config *c,
                           int host_is_device) {
    const int hosted = c->optimizer_tier == ZERO_HOST || c->gradient_tier == ZERO_HOST
                       || c->parameter_tier == ZERO_HOST;
    const int stay = c->gradient_tier == ZERO_HOST && p->update_on == ZERO_UPDATE_DEVICE;
    if (!c->optimizer_tier && !c->gradient_tier && !c->parameter_tier) return;
    report_row(r, "offload", "parameters %s, gradients %s, optimizer %s",
               plan_tiers[c->parameter_tier], plan_tiers[stay ? ZERO_DEVICE : c->gradient_tier],
               plan_tiers[c->optimizer_tier]);
    if (hosted && host_is_device)
        report_row(r, "  host", "is device: the CPU version has one memory");
    if (c->offload_share < 1)
        report_row(r, "  of", "%.4g of the elements; the rest: device", (double)c->offload_share);
}

static void plan_host_row(report *r, const zero_plan *p) {
    if (!p->host_bytes) return;
    report_mib(r, "host, of a rank", p->host_bytes, ", state and staging buffers");
    report_mib(r, "  pinned", p->pinned_bytes, ", exactly");
    report_mib(r, "  down in a step", p->down_bytes, "");
    report_mib(r, "  up in a step", p->up_bytes, "");
}

/* Prints the two ways to update state in CPU memory, and the chosen one. */
static void plan_update_rows(report *r, const zero_plan *p, const zero_config *c) {
    const int through = p->update_on == ZERO_UPDATE_DEVICE;
    if (p->update_on == ZERO_UPDATE_AUTO) return;
    const char *why = c->update_on != ZERO_UPDATE_AUTO ? ", as asked for"
                      : !through && p->update_device_s < p->update_host_s
                          ? ", required by -zog, -zop or -zod"
                          : "";
    report_row(r, "update", "by the %s%s", through ? "GPU, with a copy of the state" : "CPU", why);
    report_row(r, "  by the CPU", "%.3g ms at %.4g GB/s of memory, %.4g of the link",
               1e3 * p->update_host_s, (double)c->memory_gbs, (double)c->link_gbs);
    report_row(r, "  by the GPU", "%.3g ms", 1e3 * p->update_device_s);
}

static void plan_file_rows(report *r, const zero_plan *p, const zero_config *c) {
    if (!p->file_bytes) return;
    report_mib(r, "file of a rank", p->file_bytes,
               c->no_file_check ? ", pieces are not checked" : ", pieces are checked");
    report_row(r, "  in", "%.200s", c->folder != NULL ? c->folder : "");
    if (p->file_way) report_row(r, "  by", "%s", p->file_way);
    report_mib(r, "  read in a step", p->file_read_bytes, "");
    report_mib(r, "  written in a step", p->file_written_bytes, "");
}

/* Prints which weights and gradients are sent quantized, if any. */
static void plan_packed_rows(report *r, const zero_plan *p, const zero_config *c) {
    char weights[64] = "weights not", gradients[32] = "gradients not";
    if (!c->weight_bits && !c->frozen_weight_bits && !c->gradient_bits) return;
    if (c->weight_bits) (void)snprintf(weights, sizeof weights, "weights %d bits", c->weight_bits);
    if (c->frozen_weight_bits)
        (void)snprintf(weights + strlen(weights), sizeof weights - strlen(weights),
                       ", frozen weights %d bits", c->frozen_weight_bits);
    if (c->gradient_bits)
        (void)snprintf(gradients, sizeof gradients, "gradients %d bits", c->gradient_bits);
    report_row(r, "quantized", "%s, %s%s", weights, gradients,
               c->feedback > 0 ? ", error feedback" : "");
    report_mib(r, "  messages", p->packed_bytes, ", with errors, in buffers");
}

void plan_rows(report *r, const zero_plan *p, const zero_config *c, int host_is_device) {
    plan_tier_rows(r, p, c, host_is_device);
    if (c->delay_from)
        report_row(r, "delayed update", "from step %d on%s", c->delay_from,
                   host_is_device ? ", with a second copy in buffers" : "");
    report_mib(r, "memory of a rank", plan_bytes(p, host_is_device), "");
    report_mib(r, "  parameters", p->param_bytes, "");
    report_mib(r, "  gradients", p->grad_bytes, "");
    report_mib(r, "  optimizer state", p->optimizer_bytes, "");
    report_mib(r, "  buffers", p->buffer_bytes, "");
    if (host_is_device) report_mib(r, "  lists and queues", p->context_bytes, "");
    if (c->integrity)
        report_row(r, "integrity", "%zu bytes of hashes, %zu of a step's agreement", p->hash_bytes,
                   p->verdict_bytes);
    report_mib(r, "  by the formula", p->formula_bytes, ", without buffers and padding");
    if (p->accumulator_bytes && c->gradient_tier == ZERO_FILE)
        report_mib(r, "  sums in memory", p->accumulator_bytes,
                   ", in buffers: gradient accumulation of 16-bit types");
    plan_packed_rows(r, p, c);
    plan_host_row(r, p);
    plan_update_rows(r, p, c);
    plan_file_rows(r, p, c);
}
