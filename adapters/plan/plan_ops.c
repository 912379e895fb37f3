/* plan_ops.c - scratch memory of GPT-2's operations, on what the plan is for.

   gpt2.c asks ops_scratch_bytes and ops_logits_budget, which are those of the operations that a
   program is linked with: the CPU's, in a planner. The linker (--wrap) puts these two in between.
*/
#include "../gpt2/cuda_bytes.h"
#include "plan_world.h"

size_t __real_ops_scratch_bytes(const ops_limits *limits, zero_type type);
size_t __real_ops_logits_budget(void);
size_t __wrap_ops_scratch_bytes(const ops_limits *limits, zero_type type);
size_t __wrap_ops_logits_budget(void);

size_t __wrap_ops_scratch_bytes(const ops_limits *limits, zero_type type) {
    return plan_is_for_gpus() ? cuda_scratch_bytes(limits) : __real_ops_scratch_bytes(limits, type);
}

size_t __wrap_ops_logits_budget(void) {
    return plan_is_for_gpus() ? cuda_logits_budget() : __real_ops_logits_budget();
}
