# make -f zero.mk [TARGET]; all settings of llm.c apply. ZERO: the folder of the plugin's repository.
# NCCL_HOME: a folder with include/nccl.h and lib/, if the toolkit and the system have no NCCL.
# This makefile writes zero_plugin.h and zero_plugin.cu to build/zero, and compiles them separately:
# llm.c is built with fast-math, but the plugin needs its sums in order.

include Makefile

ZERO_CC_FLAGS = -std=c11 -D_GNU_SOURCE -O3 -march=native -ffp-contract=off -fopenmp -pthread
ZERO_DROP     = $(BUILD_DIR)/zero
ZERO_INCLUDES = -I$(ZERO_DROP) -I'$(ZERO)/adapters/llmc'

# NCCL: in NCCL_HOME, the toolkit, /usr/local or /usr. Make prints one line with the result.
ZERO_CUDA    := $(if $(NVCC),$(shell dirname "$$(dirname "$$(readlink -f '$(NVCC)')")"))
ZERO_NCCL    := $(shell for home in '$(NCCL_HOME)' '$(ZERO_CUDA)' /usr/local /usr; do \
	[ -f "$$home/include/nccl.h" ] && ls "$$home"/lib64/libnccl.so* "$$home"/lib/libnccl.so* \
	"$$home"/lib/*/libnccl.so* 2>/dev/null | head -n 1 | grep . && break; done)
ifeq ($(NO_MULTI_GPU),1)
ZERO_NCCL    :=
endif
ifneq ($(ZERO_NCCL),)
ZERO_NCCL_HOME := $(shell dirname "$$(echo '$(ZERO_NCCL)' | sed 's|/lib.*||')/.")
ZERO_NV_FLAGS = $(if $(filter -DMULTI_GPU,$(NVCC_FLAGS)),,-DMULTI_GPU) -DZERO_WITH_NCCL $(if $(filter /usr /usr/local,$(ZERO_NCCL_HOME)),,-I$(ZERO_NCCL_HOME)/include)
ZERO_NV_LIBS  = $(ZERO_NCCL) -Xlinker -rpath -Xlinker $(dir $(ZERO_NCCL))
endif
$(if $(NVCC),$(info zero: NCCL: $(or $(ZERO_NCCL),not found: one GPU)))

# llm.c reads the GPU's state through the driver's library, which is linked only if its header exists.
ifeq ($(shell printf '\043include <nvml.h>\n' | $(or $(NVCC),false) -x cu -E - >/dev/null 2>&1 && echo yes),)
NVCC_LDFLAGS := $(filter-out -lnvidia-ml,$(NVCC_LDFLAGS))
endif

.DEFAULT_GOAL := zero
.PHONY: zero
zero: train_gpt2_zero $(if $(NVCC),train_gpt2_fp32_zerocu train_gpt2_zerocu)

# Blanks in a prerequisite's name are escaped.
ZERO_FOLDER  := $(shell printf '%s' '$(ZERO)' | sed 's/ /\\ /g')
ZERO_HEADERS  = $(foreach h,llmc fork nccl,$(ZERO_FOLDER)/adapters/llmc/zero_$h.h)
TARGETS      += train_gpt2_zero train_gpt2_fp32_zerocu train_gpt2_zerocu

# drop.sh runs each time; an unchanged file keeps its time.
.PHONY: zero_drop
zero_drop:
	@sh '$(ZERO)/zero_plugin/drop.sh' $(ZERO_DROP) >/dev/null
$(ZERO_DROP)/zero_plugin.cu: zero_drop ;
$(BUILD_DIR)/zero_plugin.o: $(ZERO_DROP)/zero_plugin.cu
	$(CC) $(ZERO_CC_FLAGS) -x c -c -o $@ $<
$(BUILD_DIR)/zero_plugin_cuda.o: $(ZERO_DROP)/zero_plugin.cu
	$(NVCC) -std=c++17 -O3 -fmad=false $(filter arch=% code=% --generate-code,$(NVCC_FLAGS)) $(ZERO_NV_FLAGS) -c -o $@ $<

train_gpt2_zero: train_gpt2_zero.c $(BUILD_DIR)/zero_plugin.o $(ZERO_HEADERS)
	$(CC) $(CFLAGS) -fopenmp -pthread $(INCLUDES) $(ZERO_INCLUDES) $(LDFLAGS) $(filter train_%.c %.o,$^) $(LDLIBS) -o $@
train_gpt2_fp32_zerocu: train_gpt2_fp32_zero.cu $(BUILD_DIR)/zero_plugin_cuda.o $(ZERO_HEADERS)
	$(NVCC) $(NVCC_FLAGS) $(ZERO_NV_FLAGS) $(filter %.cu %.o,$^) $(NVCC_LDFLAGS) $(NVCC_INCLUDES) $(ZERO_INCLUDES) $(NVCC_LDLIBS) $(ZERO_NV_LIBS) -o $@
train_gpt2_zerocu: train_gpt2_zero.cu $(BUILD_DIR)/zero_plugin_cuda.o $(NVCC_CUDNN) $(ZERO_HEADERS)
	$(NVCC) $(NVCC_FLAGS) $(PFLAGS) $(ZERO_NV_FLAGS) $(filter %.cu %.o,$^) $(NVCC_LDFLAGS) $(NVCC_INCLUDES) $(ZERO_INCLUDES) $(NVCC_LDLIBS) $(ZERO_NV_LIBS) -o $@
