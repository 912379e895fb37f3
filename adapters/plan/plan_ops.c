/* plan_ops.c - the scratch memory of GPT-2's operations, on the device that the plan is for.

   gpt2.c calls ops_scratch_bytes and ops_logits_budget. The planner is linked with the CPU's
   operations, so these functions would return the CPU's bytes. The linker (--wrap) replaces calls
   of them by calls of the two __wrap_ functions below, which return the GPU's bytes if the plan is
   for GPUs. Attention's memory depends on the generation of the GPU. The planner opens the driver
   of this machine at run time, and queries that. Without a GPU it plans for Hopper.
*/
#include <dlfcn.h>
#include <string.h>

#include "../gpt2/cuda_bytes.h"
#include "plan_world.h"

size_t __real_ops_scratch_bytes(const ops_limits *limits, const ops_settings *settings);
size_t __real_ops_logits_budget(void);
size_t __wrap_ops_scratch_bytes(const ops_limits *limits, const ops_settings *settings);
size_t __wrap_ops_logits_budget(void);

/* Returns the major number of the compute capability of the driver's first GPU; 0: it has none. */
static int ask_driver(void *driver) {
    enum { CAPABILITY_MAJOR = 75 }; /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR */
    int (*init)(unsigned flags), (*get)(int *device, int number);
    int (*attribute)(int *value, int what, int device);
    void *const found[3] = {dlsym(driver, "cuInit"), dlsym(driver, "cuDeviceGet"),
                            dlsym(driver, "cuDeviceGetAttribute")};
    int device = 0, major = 0;
    if (!found[0] || !found[1] || !found[2]) return 0;
    memcpy(&init, &found[0], sizeof init);
    memcpy(&get, &found[1], sizeof get);
    memcpy(&attribute, &found[2], sizeof attribute);
    if (init(0) || get(&device, 0) || attribute(&major, CAPABILITY_MAJOR, device)) return 0;
    return major;
}
int plan_gpu_major(void) {
    static int major = -1;
    if (major >= 0) return major;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    major = driver ? ask_driver(driver) : 0; /* the driver stays open: it may have threads */
    return major;
}

size_t __wrap_ops_scratch_bytes(const ops_limits *limits, const ops_settings *settings) {
    const int major = plan_gpu_major();
    return plan_is_for_gpus() ? cuda_scratch_bytes(limits, settings, major ? major : HOPPER)
                              : __real_ops_scratch_bytes(limits, settings);
}

size_t __wrap_ops_logits_budget(void) {
    return plan_is_for_gpus() ? cuda_logits_budget() : __real_ops_logits_budget();
}
