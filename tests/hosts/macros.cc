/* macros.cc - the header's macros in a C++ host: check.sh compiles it without a warning. */
#include "zero_plugin.h"

#include <stdlib.h>

struct Params {
    float *wte, *fcw;
};

static zero_result announce(zero_ctx *z, Params *params, Params *grads, size_t C, int L) {
    const zero_tensor_desc table[] = {ZERO_FIELD(Params, wte, 9 * C, .uses = 2),
                                      ZERO_FIELD(Params, fcw, 4 * C * C, .layers = L, .unit = 1)};
    float *weight = NULL, *gradient = NULL;
    ZERO_TRY(zero_tensors(z, table, 2));
    ZERO_PLACE(z, weight, gradient, C);
    return zero_adopt(z, params, grads, ZERO_F32, free);
}

int main() {
    zero_ctx *z;
    zero_config cfg = {};
    Params params = {NULL, NULL}, grads = {NULL, NULL};
    ZERO_START_LOCAL(z, 2, .stage = 3, .micro_steps = cfg.micro_steps);
    const zero_result result = announce(z, &params, &grads, 8, 4);
    zero_destroy(z);
    return result;
}
