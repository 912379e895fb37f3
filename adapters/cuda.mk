# cuda.mk - the CUDA build, and CUDA run on the CPU by tests/emulation; part of Makefile.
# NCCL_HOME, CUDNN_HOME, CUDA_HOME: their folders, or `none`; ARCHS="80 90": GPUs to compile for.
# CARRY: a folder with include/ and lib/ of xxHash and cJSON, if the machine lacks them.

C       = $B/cuda
FIND    = CUDA_HOME='$(CUDA_HOME)' NCCL_HOME='$(NCCL_HOME)' CUDNN_HOME='$(CUDNN_HOME)' sh adapters/cuda.sh
ARCHS  ?= $(call once,ARCHS,$(FIND) archs $(NVCC))
GENCODE = $(foreach a,$(ARCHS),-gencode arch=compute_$a,code=sm_$a) -gencode arch=compute_$(lastword $(ARCHS)),code=compute_$(lastword $(ARCHS))
TOOLKIT = $(call once,TOOLKIT,$(FIND) toolkit $(NVCC))
CUFLAGS = $(call once,CUFLAGS,$(FIND) compile $(NVCC))
CULIBS  = $(call once,CULIBS,$(FIND) link $(NVCC))
CARRIED = $(if $(CARRY),-I$(CARRY)/include)
CARRIED_LIBS = $(if $(CARRY),-L$(CARRY)/lib -Xlinker -rpath -Xlinker $(abspath $(CARRY))/lib)
NVFLAGS = -std=c++17 -g -O3 -fmad=false $(if $(WERROR),-Werror all-warnings) -Xcompiler -Wall,-Wextra,-Wno-missing-field-initializers,-pthread,-ffp-contract=off $(addprefix -Xcompiler ,$(OMP) $(filter -m%,$(OPT))) -t 0 $(CUFLAGS) $(CARRIED) -MMD -MP
CUBASE  = zero_plugin gpt2 context ring experts ops_experts_cuda tensor_parallel stages frozen lora lora_tensors pipelined recheck pipeline pipeline_run pipeline_lane_cuda spill_cuda ops_cuda attention_cuda attention_cudnn
CUOBJS  = $(addprefix $C/,plan_plugin.o $(addsuffix .o,$(filter-out zero_plugin,$(CUBASE)))) $(TRAINER:$B/%=$C/%)
vpath %.cu adapters/gpt2 adapters/pipeline tests/cuda

.PHONY: cuda cuda-tests cuda-libraries emulated
cuda: $C/train_gpt2_zero
cuda-libraries:
	@CARRY='$(CARRY)' sh adapters/deps.sh check $(CC) cuda $(NVCC)
	@$(FIND) report $(NVCC)

$C/settings: FORCE | cuda-libraries
	$(call keep,$(SETTINGS) $(NVCC) $(NVFLAGS) $(GENCODE) $(CARRIED_LIBS) $(CULIBS) $(shell $(NVCC) --version | tail -n 1))
$C/%.o: %.cu $C/settings
	@mkdir -p $C
	$(call short,NVCC)$(NVCC) $(NVFLAGS) $(GENCODE) -I. -c -o $@ $<
$C/plan_plugin.o: plan_plugin.c $C/settings
	@mkdir -p $C
	$(call short,NVCC)$(NVCC) $(NVFLAGS) $(GENCODE) -I. -x cu -c -o $@ $<
$C/%.o: %.c $C/settings
	@mkdir -p $C
	$(COMPILE) $(CUFLAGS) $(CARRIED) -I. -c -o $@ $<
CULINK  = $(COMPILE) -o $@ $(filter %.o,$^) $(CARRIED_LIBS) $(CULIBS) -lxxhash -lcjson -lm
$C/train_gpt2_zero: $(CUOBJS)
	$(CULINK)
$C/gpu_kernels: $C/gpu_kernels.o $C/ops_cuda.o $C/attention_cuda.o $C/attention_cudnn.o
	$(CULINK)
# The dropped unit with a smaller ring of records: thousands of contexts would create millions of events.
DROPPED = -DCUDA_SOURCE='"$B/drop/small_ring.cu"'
$B/drop/small_ring.cu: $B/drop/zero_plugin.cu
	@sed 's/^#define ZP_RECORDS .*/#define ZP_RECORDS ((size_t)1 << 10)/' $< >$@ && grep -q '1 << 10' $@
# Tests for a GPU; test_cuda's arenas are managed memory, which its CPU code reads.
cuda-tests: $(addprefix $C/,test_cuda test_groups_cuda test_start_cuda test_attention test_gpt2_ops test_gpt2 test_gpt2_tiles test_gpt2_layers test_gpt2_frozen test_gpt2_lora test_gpt2_parallel test_gpt2_context test_gpt2_experts test_gpt2_pipeline gpu_kernels)
$C/test_cuda $C/test_groups_cuda $C/test_start_cuda: $C/%: tests/cuda/%.cu $B/drop/small_ring.cu $C/settings
	@mkdir -p $C
	$(call short,NVCC)$(NVCC) $(NVFLAGS) $(GENCODE) -DZP_CUDA_MALLOC=cudaMallocManaged $(DROPPED) -I. -c -o $@.o $<
	$(COMPILE) -o $@ $@.o $(CULIBS) -lm
$C/test_gpt2_ops.o $C/test_gpt2.o $C/test_gpt2_tiles.o $C/test_gpt2_layers.o $C/test_gpt2_frozen.o $C/test_gpt2_lora.o $C/test_gpt2_parallel.o $C/test_gpt2_context.o $C/test_gpt2_experts.o $C/test_gpt2_pipeline.o: $C/%.o: tests/gpt2/%.c $C/settings
	@mkdir -p $C
	$(call short,NVCC)$(NVCC) $(NVFLAGS) $(GENCODE) -I. -x cu -c -o $@ $<
$C/test_attention $C/test_gpt2_ops $C/test_gpt2 $C/test_gpt2_tiles $C/test_gpt2_layers $C/test_gpt2_frozen $C/test_gpt2_lora $C/test_gpt2_parallel $C/test_gpt2_context $C/test_gpt2_experts $C/test_gpt2_pipeline: $C/%: $C/%.o $(addprefix $C/,$(addsuffix .o,$(CUBASE)))
	$(CULINK)

# ---- CUDA on the CPU: c++ compiles the unchanged .cu files with tests/emulation. This needs the headers
# of the toolkit, NCCL and cuDNN, but none of their libraries ----
E       = $B/emulated
# The warnings of the CUDA build, so that CI finds them where nvcc does not run. Those of the optimizer are false here.
EWARN   = -Wall -Wextra -Wno-missing-field-initializers -Wno-unknown-pragmas -Wno-maybe-uninitialized -Wno-dangling-pointer -Wno-array-bounds $(if $(WERROR),-Werror)
EFLAGS  = -g -O2 -march=native -ffp-contract=off -pthread $(CUFLAGS) -I. -MMD -MP
$E/train_gpt2_zero.o: EFLAGS += -DMATMUL_ROUNDS=0
ECXX    = $(CXX) -std=c++17 -D__CUDACC__ -Itests/emulation $(EWARN) $(EFLAGS)
EMODEL  = $(addprefix $E/,gpt2.o context.o ring.o experts.o tensor_parallel.o stages.o frozen.o lora.o lora_tensors.o pipelined.o recheck.o pipeline.o pipeline_run.o pipeline_lane_cuda.o)
EDEVICE = $(addprefix $E/,ops_cuda.o ops_experts_cuda.o spill_cuda.o attention_cuda.o attention_cudnn.o emulation.o emulation_nccl.o cublaslt.o cudnn.o)
vpath %.cc tests/emulation
$E/settings: FORCE
	$(call keep,$(SETTINGS) $(CUFLAGS))
# An access of a vector at an address that is no multiple of its size traps, as it does on a GPU.
ALIGNED = -fsanitize=alignment -fsanitize-undefined-trap-on-error
$E/%.o: %.cu $E/settings
	@mkdir -p $E
	$(call short,CXX)$(ECXX) $(ALIGNED) -x c++ -include cuda_runtime.h -c -o $@ $<
$E/plan_plugin.o: plan_plugin.c $E/settings
	@mkdir -p $E
	$(call short,CXX)$(ECXX) $(ALIGNED) -I. -x c++ -include cuda_runtime.h -c -o $@ $<
$E/%.o: %.cc $E/settings
	@mkdir -p $E
	$(call short,CXX)$(ECXX) -c -o $@ $<
$E/%.o: %.c $E/settings
	@mkdir -p $E
	$(call short,CC)$(CC) -std=c11 -D_GNU_SOURCE $(EFLAGS) -c -o $@ $<
$E/train_gpt2_zero: $(addprefix $E/,plan_plugin.o train_gpt2_zero.o) $(EMODEL) $(EDEVICE) $(LAUNCH:$B/%=$E/%) $(filter-out $(LAUNCH) %/train_gpt2_zero.o,$(TRAINER))
	$(call short,CXX)$(CXX) -pthread -fopenmp -rdynamic -o $@ $^ -lxxhash -lcjson -lm -ldl
$E/test_gpt2_ops.o $E/test_gpt2.o $E/test_gpt2_tiles.o $E/test_gpt2_layers.o $E/test_gpt2_frozen.o $E/test_gpt2_lora.o $E/test_gpt2_parallel.o $E/test_gpt2_context.o $E/test_gpt2_experts.o $E/test_gpt2_pipeline.o: $E/%.o: tests/gpt2/%.c $E/settings
	@mkdir -p $E
	$(call short,CXX)$(ECXX) -x c++ -include cuda_runtime.h -c -o $@ $<
$E/test_gpt2 $E/test_gpt2_tiles $E/test_gpt2_layers $E/test_gpt2_frozen $E/test_gpt2_lora $E/test_gpt2_parallel $E/test_gpt2_context $E/test_gpt2_experts $E/test_gpt2_pipeline: $E/%: $E/%.o $(EMODEL) $E/zero_plugin.o $(EDEVICE)
$E/zero_plugin.o: ECXX += -Dsyscall=emulated_syscall -Dnanosleep=emulated_nanosleep -Dpthread_cond_wait=emulated_cond_wait
$E/test_gpt2_ops: $E/test_gpt2_ops.o $E/zero_plugin.o $(EDEVICE)
$E/test_attention: $E/test_attention.o $E/zero_plugin.o $(EDEVICE)
$E/test_cuda.o $E/test_groups_cuda.o $E/test_start_cuda.o: $B/drop/small_ring.cu
$E/test_cuda.o $E/test_groups_cuda.o $E/test_start_cuda.o: ECXX += $(DROPPED) -DZP_CUDA_MALLOC=cudaMallocManaged -Dsyscall=emulated_syscall -Dnanosleep=emulated_nanosleep -Ddlsym=emulated_dlsym -Dpthread_cond_wait=emulated_cond_wait -fno-inline \
	-fno-omit-frame-pointer -fno-optimize-sibling-calls
$E/test_cuda: $E/test_cuda.o $E/emulation.o $E/emulation_nccl.o
$E/test_groups_cuda: $E/test_groups_cuda.o $E/emulation.o $E/emulation_nccl.o
$E/test_start_cuda: $E/test_start_cuda.o $E/emulation.o $E/emulation_nccl.o
$E/test_emulation: $E/test_emulation.o $E/zero_plugin.o $E/emulation.o $E/emulation_nccl.o
# adapters/example.cu, with its launches as calls
$E/example.cu: adapters/example.cu
	@mkdir -p $E
	@sed -E 's/([a-z_]+)<<<([^>]*)>>>\(/EMULATED_LAUNCH(\1, \2, /' $< >$@
$E/test_example_cuda.o: ECXX += -DEXAMPLE='"$(abspath $E)/example.cu"'
$E/test_example_cuda.o: $E/example.cu
$E/test_example_cuda: $E/test_example_cuda.o $E/zero_plugin.o $E/emulation.o $E/emulation_nccl.o
	$(call short,CXX)$(CXX) -pthread -fopenmp -rdynamic -o $@ $^ -lm -ldl
ETESTS  = $(addprefix $E/,test_gpt2 test_gpt2_tiles test_gpt2_layers test_gpt2_frozen test_gpt2_lora test_gpt2_parallel test_gpt2_context test_gpt2_experts test_gpt2_pipeline test_gpt2_ops test_attention test_cuda test_groups_cuda test_start_cuda test_emulation)
$(ETESTS):
	$(call short,CXX)$(CXX) -pthread -rdynamic -o $@ $^ -lm -ldl
$E/gpu_kernels: $E/gpu_kernels.o $(EDEVICE)
	$(call short,CXX)$(CXX) -pthread -rdynamic -o $@ $^ -lm -ldl
emulated: $(filter-out %/test_gpt2 %/test_gpt2_tiles %/test_gpt2_layers %/test_gpt2_frozen %/test_gpt2_lora %/test_gpt2_parallel %/test_gpt2_context %/test_gpt2_experts %/test_gpt2_pipeline,$(ETESTS)) $E/gpu_kernels $E/test_example_cuda $E/train_gpt2_zero
