/* growth_count.c - counts the basic blocks that test_growth runs, on all of its threads. It is
   compiled apart: a counter that is counted itself would never return. */
static long growth_operations;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) { __atomic_fetch_add(&growth_operations, 1, __ATOMIC_RELAXED); }
void growth_add(long operations);
void growth_add(long operations) {
    __atomic_fetch_add(&growth_operations, operations, __ATOMIC_RELAXED);
}
long growth_counted(void);
long growth_counted(void) { return __atomic_load_n(&growth_operations, __ATOMIC_RELAXED); }
