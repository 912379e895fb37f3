/* driver.c - a libcuda.so.1 for tests on machines without a GPU. cuDNN loads it, and can then
   finalise its execution plans, whose kernels it compiles itself: loading a library, finding a
   kernel in it and setting a kernel's attribute succeed and do nothing. Everything else is refused
   (test_cudnn.sh adds the other functions of the toolkit's stub), so that nothing can seem to have
   run. Prototypes are those of cuda.h. */
#include <stdio.h>

#include <cuda.h>

static char last_kernel[256];
static int object; /* something to point to */

/* The name of the kernel that was asked for last, for tests. */
const char *test_driver_kernel(void);
const char *test_driver_kernel(void) { return last_kernel; }

CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options,
                           void **values, unsigned n, CUlibraryOption *library_options,
                           void **library_values, unsigned library_n) {
    (void)options, (void)values, (void)n, (void)library_options, (void)library_values,
        (void)library_n;
    if (!code) return CUDA_ERROR_INVALID_VALUE;
    *library = (CUlibrary)(void *)&object;
    return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library) {
    return library ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    (void)snprintf(last_kernel, sizeof last_kernel, "%s", name);
    *kernel = (CUkernel)(void *)&object;
    return CUDA_SUCCESS;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice device) {
    (void)attribute, (void)value, (void)device;
    return kernel ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
