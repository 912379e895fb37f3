// A toy for the tests: the one call that CUDA 13 does not take.
void advise(void *p) { cudaMemAdvise(p, 1, advice, cudaCpuDeviceId); }
