/* test_unit.c [PART] - the plugin's private functions, one by one: each part is a file unit_*.h, of
   one subject. The program includes the plugin itself, once, so that parts can call its private
   functions. Errors of public functions are in test_errors.c. */
#include "../../zero_plugin.cu"
#include "../shared/lanes.h"
#include "small.h"

static zp_stream unit_stream(zp_device *d, int threads) {
    zp_stream s;
    (void)zp_device_take_stream(&s, d, NULL, threads);
    return s;
}

/* Random sign and magnitude: 2^low .. 2^high, zeros now and then. */
static float unit_float(test_random *r, int low, int high) {
    const double x =
        ldexp(1.0 + (double)(test_next(r) >> 12) * 0x1p-52, low + test_below(r, high - low));
    if (test_below(r, 40) == 0) return 0;
    return (float)(test_below(r, 2) ? x : -x);
}

#include "unit_adamw.h"
#include "unit_codec.h"
#include "unit_comm.h"
#include "unit_memory.h"
#include "unit_norm.h"
#include "unit_numbers.h"
#include "unit_order.h"
#include "unit_partition.h"
#include "unit_rounding.h"
#include "unit_settings.h"
#include "unit_streams.h"
#include "unit_sums.h"
#include "unit_tensors.h"

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"numbers", unit_numbers},     {"partition", unit_partition_all},
                 {"adamw", unit_adamw_all},     {"norm", unit_norm_all},
                 {"sums", unit_sums_all},       {"order", unit_order_all},
                 {"streams", unit_streams_all}, {"settings", unit_settings_all},
                 {"codec", unit_codec_all},     {"rounding", unit_rounding_all},
                 {"tensors", unit_tensors_all}, {"memory", unit_memory_all},
                 {"comm", unit_comm_all}};
    const size_t n = sizeof parts / sizeof *parts;
    size_t ran = 0;
    (void)alarm(300); /* a wait that never ends is a failure */
    for (size_t i = 0; i < n; i++)
        if (argc < 2 || !strcmp(argv[1], parts[i].name)) parts[i].run(), ran++;
    test_check(ran > 0, "no part is called %s", argc > 1 ? argv[1] : "");
    return test_summary();
}
