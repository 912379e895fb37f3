# make deps             install what is missing
# make                  the trainer, ./train_gpt2_zero, and tiny Shakespeare as tokens
# make plan             memory, traffic, what fits, without a machine; ARGS="-e 7.5e9 -pn 64 -dt bf16"; machine: measure this one
# make scale            weak scaling over 8 to 1,024 ranks, simulated: MACHINE=file of rates, ARGS; build/scale.csv, pictures
# make tune             the three best plans of -z auto, run for some steps; ARGS="-e d12 -pn 2 -t 64 -d 2048 --memory 2G"
# make compare          DDP against ZeRO-1, 2, 3 on this machine; ARGS="-e d12 -t 64 -b 4" changes the run,
#                       ARGS='-layouts "dp4 tp2dp2"' compares layouts of the ranks
# make report           after a comparison or a run with -o log: build/report.html, one page; LOG, CSV, TRACE, PEERS
# make drop DIR=folder [WITH="core nccl"]   the plugin's two files, for your own trainer; WITH: only these parts
# make lib, install     the plugin as a library; PREFIX
# make zero_ckpt        the tool for checkpoints
# make test             the tests, in 6 minutes; test-quick: in one; test-long: what CI adds; test-all: no samples
# make check            format, linters, both compilers; docs: writes the generated pages of adapters/docs; prove: tests/proofs with CBMC
# make bench            measure against MPI and memory
# make links            steps over slow links between hosts, with every method, half an hour, root; links-check: is the simulator right?
# make ranks            planning, meeting, building and stepping with 2 to 32 ranks and 2 to 8 hosts, and how each grows
# make converge         losses with and without fewer bits on the wire, paired by seed; MINUTES=90
# make soak             all capabilities for HOURS=1, beside kills and fuzz inputs, counted over runs; ROWS="states sizes": only these
# make mutants          do the tests notice when one token of the plugin is another? BUDGET=20 minutes, SEED, JOBS, QUICK, AGAIN=1; root
# make cuda             build for CUDA, into B/cuda; cuda-tests: the tests that run on a GPU
# make test-llmc LLMC=path of a checkout of llm.c
# make same BASE=commit does this tree compute, plan and send what that commit does? speed: as fast? golden: new tests/tools/golden.txt
# Settings: V=1 (whole command lines), DEVICE=cuda|cpu (of train_gpt2_zero; cuda where nvcc and a GPU are),
# CC, NVCC, MPICC (empty: without MPI), OPT, B (build folder), WERROR=1 (warnings are errors, as in CI);
# of CUDA: see adapters/cuda.mk.

# A second make builds the goals after `deps`. It starts when the packages are installed, so it finds them.
AFTER_DEPS := $(if $(filter deps,$(MAKECMDGOALS)),$(filter-out deps,$(MAKECMDGOALS)))
ifneq ($(AFTER_DEPS),)
.PHONY: deps $(AFTER_DEPS)
deps:
	@sh adapters/deps.sh install $(DEPS)
	@$(MAKE) --no-print-directory $(AFTER_DEPS)
$(AFTER_DEPS): deps ; @:
else

B      ?= build
OPT    ?= -O3 -march=native
OMP    ?= -fopenmp
NVCC   ?= nvcc
comma   = ,
SILENT  = $(findstring s,$(firstword -$(MAKEFLAGS)))
short   = $(if $V,,@$(if $(SILENT),,echo '  $1 $@';) )# what a command line is printed as
once    = $(eval $1 := $(shell $2))$($1)
MPICC   = $(call once,MPICC,command -v mpicc)
ifndef DEVICE
DEVICE := $(shell sh adapters/cuda.sh device $(NVCC))
endif
WARN    = -Wall -Wextra -Wpedantic -Wshadow $(if $(WERROR),-Werror)
CFLAGS  = -std=c11 -D_GNU_SOURCE -g $(OPT) -ffp-contract=off -fno-math-errno $(OMP) -pthread $(WARN)
# URING=1: files of offload by io_uring where the kernel lets it; needs liburing
RINGS   = -DZERO_WITH_URING -Wl,--no-as-needed -luring
BUILDER = $(or $(MPICC),$(CC)) $(if $(MPICC),-DZERO_WITH_MPI -DOMPI_SKIP_MPICXX) $(CFLAGS) $(if $(URING),$(RINGS))
COMPILE = $(call short,CC)$(BUILDER) -MMD -MP
# Objects depend on a file that lists compilers, flags and settings. Each make rewrites the file if the list has changed,
# and then every object is older than the file. `:=` because some programs set their own OPT.
SETTINGS := $(BUILDER) $(CC) $(CXX) $(FASTOPT) $(shell { $(or $(MPICC),$(CC)) --version | head -n 1; $(CXX) --version | head -n 1; \
	$(if $(MPICC),$(MPICC) -show;) } 2>/dev/null)
keep    = @mkdir -p $(@D); printf '%s\n' '$(subst ','\'',$1)' >$@.$$$$; if cmp -s $@.$$$$ $@; then rm $@.$$$$; else mv $@.$$$$ $@; fi

PLUGIN  = $B/zero_plugin.o
vpath test_%.c $(sort $(dir $(wildcard tests/*/test_*.c)))
vpath fuzz_%.c tests/fuzz
vpath bench_%.c tests/bench
vpath growth_%.c tests/plugin
vpath %.c adapters/gpt2 adapters/pipeline adapters/launch adapters/schedule adapters/ds_config adapters/checkpoint adapters/options adapters/compare adapters/eval adapters/report adapters/parallel adapters/saves adapters/corpus adapters/plan adapters/page data
PIPES   = $B/pipeline.o $B/pipeline_run.o $B/pipeline_lane.o
GPT2    = $B/gpt2.o $B/context.o $B/ring.o $B/experts.o $B/ops_experts_cpu.o $B/tensor_parallel.o $B/stages.o $B/frozen.o $B/lora.o $B/lora_tensors.o $B/pipelined.o $B/recheck.o $B/ops_cpu.o $B/matmul.o $B/products.o $B/products_text.o $B/spill_file.o $(PIPES)
DSCONF  = $B/ds_config.o $B/ds_text.o $B/ds_print.o $B/schedule.o
LAUNCH  = $(patsubst adapters/launch/%.c,$B/%.o,$(wildcard adapters/launch/*.c))
MODELS  = $B/model_files.o $B/model_io.o $B/llmc_bin.o $B/safetensors.o $B/lora_files.o
CKPT    = $(patsubst adapters/checkpoint/%.c,$B/%.o,$(wildcard adapters/checkpoint/checkpoint*.c))
ROOMS   = $(patsubst %.c,$B/%.o,$(notdir $(wildcard adapters/options/*.c adapters/compare/*.c adapters/eval/*.c adapters/report/*.c adapters/parallel/*.c adapters/saves/*.c adapters/corpus/*.c))) $B/outliers.o
READERS = $(addprefix $B/,data_file.o eval_file.o token_file.o tokenizer.o windows.o)
TRAINER = $B/train_gpt2_zero.o $(ROOMS) $(LAUNCH) $(DSCONF) $(CKPT) $(MODELS) $B/gpt2_values.o $(READERS) $(CHOICE)
CKTESTS = $(addprefix $B/,test_checkpoint test_checkpoint_kill test_checkpoint_faults test_checkpoint_device fuzz_checkpoint zero_ckpt)
LIBS    = -ldnnl -lxxhash -lcjson -lm
UNIT    = $(addprefix $B/,test_unit test_errors test_plans test_steps test_skips test_model test_bits test_codec test_faults test_memory test_scale test_optimizers test_tensors test_check test_abi test_group test_groups test_world test_order test_order_checked test_transport test_extra test_split test_virtual test_resize test_integrity test_frozen test_states test_growth test_run test_ease test_ease_checked test_trace test_hierarchy test_rows test_rows_checked test_suggest test_lend test_lend_checked test_offload test_offload_rings test_fast_math test_scale_fast test_hashes test_orders test_orders_lane test_bounds test_proofs)
HOSTS   = $(addprefix $B/,test_host_own test_host_llama test_host_layers host_parallel host_context $(if $(MPICC),host_stages_mpi))
TESTS   = $(UNIT) $(HOSTS) $(addprefix $B/,test_products test_gpt2_ops test_gpt2 test_gpt2_tiles test_gpt2_layers test_gpt2_frozen test_gpt2_lora test_gpt2_parallel test_gpt2_context test_gpt2_experts test_gpt2_pipeline test_gpt2_recheck test_pipeline test_launch test_report test_plan test_auto test_wire test_observe test_schedule test_ds_config fuzz_ds_config test_model_files fuzz_model_files fuzz_data fuzz_machine test_deepspeed_load) $(CKTESTS)
DATA    = $B/data/tiny_char_train.bin $B/data/tiny_gpt2_train.bin
SOURCES = zero_plugin.h zero_plugin.cu $(wildcard zero_plugin/*/*.h) train_gpt2_zero.cu $(wildcard adapters/*.c adapters/*/*.[ch] adapters/*/*.cu data/*.[ch] tests/*/*.[ch] \
	tests/*/*.cu tests/*/*.cc tests/hosts/*/*.[ch])

# ---- the plugin as a library: CPU, without MPI; LIBFLAGS adds to it ----
PREFIX ?= /usr/local
ABI    := $(shell sed -n 's/^.define ZERO_ABI *//p' zero_plugin.h)
VERSION := $(shell sed -n 's/^.define ZERO_VERSION *"\(.*\)"/\1/p' zero_plugin.h)
SONAME  = libzero_plugin.so.$(ABI)

.DELETE_ON_ERROR:
.SECONDARY: # objects of tests, which a change of the plugin leaves as they are
.PHONY: FORCE all help deps libraries drop data compare plan machine tune scale report links links-check ranks converge test test-quick test-long test-all has-cuda test-llmc check bench golden same speed soak mutants lib install unit tests zero_ckpt zero_plan clean
all: train_gpt2_zero data
	$(if $(SILENT),@:,@printf '%s\n' '' 'Try:  ./train_gpt2_zero                      train a small GPT-2 on tiny Shakespeare' \
	    '      ./train_gpt2_zero --ranks 2 --stage 3  the same on two ranks, everything sharded' \
	    '      make compare                           DDP against ZeRO-1, 2, 3' \
	    '      ./train_gpt2_zero --help, make help    all there is')
help:
	@sed -n '/^$$/q;s/^# \{0,1\}//p' Makefile
include adapters/plan/plan.mk
include adapters/cuda.mk
include adapters/page/page.mk
include adapters/docs/docs.mk
HAS_CUDA = $(wildcard $(TOOLKIT)/include/cuda_runtime_api.h)

deps:
	@sh adapters/deps.sh install $(DEPS)
libraries:
	@sh adapters/deps.sh check $(CC)

# Copies the program of this device and this build folder, even if the copy of another one is newer.
place   = @cmp -s $< $@ || cp $< $@
train_gpt2_zero: $B/$(if $(filter cuda,$(DEVICE)),cuda/)train_gpt2_zero FORCE
	$(place)
zero_ckpt: $B/zero_ckpt FORCE
	$(place)
$B/settings: FORCE | libraries
	$(call keep,$(SETTINGS))
drop:
	@sh zero_plugin/drop.sh "$$DIR" $$WITH
$B/drop/zero_plugin.cu: zero_plugin.h zero_plugin.cu zero_plugin/drop.sh $(wildcard zero_plugin/*/*)
	@rm -rf $B/drop && sh zero_plugin/drop.sh $B/drop >/dev/null
# The trainer has the plugin of the planner, which is the same source with one more transport: -z auto plans with it.
$B/train_gpt2_zero: $(TRAINER) $B/plan_plugin.o $(GPT2)
	$(COMPILE) -o $@ $^ $(LIBS)

$B/%.o: %.cu $B/settings
	@mkdir -p $B
	$(COMPILE) -x c -c -o $@ $<
$B/%.o: %.c $B/settings
	@mkdir -p $B
	$(COMPILE) -I. -c -o $@ $<

# The commit is in the notes next to main.log. The object depends on it.
COMMIT := $(or $(shell git describe --always --dirty 2>/dev/null),unknown)
$B/commit: FORCE
	$(call keep,$(COMMIT))
$B/run_note.o: $B/commit
$B/run_note.o: COMPILE += -DRUN_NOTE_COMMIT='"$(COMMIT)"'

$B/tokens: $B/tokens.o
	$(COMPILE) -o $@ $^ -lpcre2-8
data: $(DATA)
$B/data/tiny_char_train.bin: $B/tokens
	@mkdir -p $B/data
	$(call short,TOKENS)$B/tokens char data/tinyshakespeare.txt $B/data/tiny_char
$B/data/tiny_gpt2_train.bin: $B/tokens
	@mkdir -p $B/data
	$(call short,TOKENS)$B/tokens gpt2 data/tinyshakespeare.txt $B/data/tiny_gpt2 data/gpt2.tiktoken

compare: train_gpt2_zero data
	./train_gpt2_zero $(if $(findstring -layouts,$(ARGS)),-pn 4,-z 0$(comma)1$(comma)2$(comma)3 -pn 2) -csv $B/compare.csv $(ARGS)

# ---- tests: every program ends with `N passed, N failed` ----
# The trainer without its measure of the processor, nine tenths of a short run: of tests that start many.
$B/unmeasured/train_gpt2_zero.o: train_gpt2_zero.cu $B/settings
	@mkdir -p $(@D)
	$(COMPILE) -DMATMUL_ROUNDS=0 -x c -c -o $@ $<
$B/unmeasured/train_gpt2_zero: $B/unmeasured/train_gpt2_zero.o $(filter-out %/train_gpt2_zero.o,$(TRAINER)) $B/plan_plugin.o $(GPT2)
	$(COMPILE) -o $@ $^ $(LIBS)
# Programs that include the plugin's source (tests/README.md says why), and objects of it for tests alone. -O3 gives the same
# bits and takes three times as long to compile.
PRIVATE = $(addprefix $B/,test_unit test_integrity test_extra test_split test_states bench_codec)
$(PRIVATE) $B/own.o $B/counted.o $B/rings.o: OPT := -O1 -march=native
# Test programs are compiled in half of the time with -O1. Those that multiply matrices themselves run longer then.
$(filter-out %/test_gpt2_ops %/test_products,$(TESTS)): private OPT := -O1 -march=native
$B/test_%.o $B/fuzz_%.o: private OPT := -O1 -march=native
$(PRIVATE): $B/%: %.c $B/settings
	@mkdir -p $B
	$(COMPILE) -I. -o $@ $< -lm
# own.o has the tests' own transports and optimizer, counted.o counts its operations, rings.o hands its requests of io_uring to the test.
$B/own.o $B/counted.o: COMPILE += -I. '-DZERO_OWN_TRANSPORTS="tests/shared/own_transports.h"' '-DZERO_OWN_OPTIMIZERS="tests/plugin/rmsprop.h"'
$B/counted.o: COMPILE += -fsanitize-coverage=trace-pc -include tests/shared/growth_bytes.h
$B/rings.o: COMPILE += $(RINGS) -include tests/plugin/offload_rings.h
$B/own.o $B/counted.o $B/rings.o: zero_plugin.cu $B/settings
	@mkdir -p $B
	$(COMPILE) -x c -c -o $@ $<
$B/test_optimizers $B/bench_ranks: $B/%: $B/%.o $B/own.o
	$(COMPILE) -o $@ $(filter %.o,$^) -lm
$B/test_growth.o: COMPILE += -DGROWTH_COUNTS=1
$B/test_growth: $B/test_growth.o $B/counted.o $B/growth_count.o
	$(COMPILE) -o $@ $(filter %.o,$^) -lm
# The linker leads the plugin's system calls to functions of the tests, named __wrap_malloc and so on.
wrapped = $(addprefix -Wl$(comma)--wrap=,$1)
COUNTED = $(call wrapped,malloc calloc realloc strdup free posix_memalign aligned_alloc mmap munmap ftruncate open close syscall pthread_create)
FILED   = $(call wrapped,open mkostemp fcntl sync_file_range statx pread pwrite posix_fallocate fstatvfs)
$B/test_faults $B/test_memory $B/test_resize: $B/%: $B/%.o $(PLUGIN)
	$(COMPILE) $(COUNTED) -o $@ $(filter %.o,$^) -lm
$B/test_transport: $B/test_transport.o $B/own.o
	$(COMPILE) $(COUNTED) -o $@ $(filter %.o,$^) -lm
$B/test_offload: $B/test_offload.o $(PLUGIN)
	$(COMPILE) $(FILED) -o $@ $(filter %.o,$^) -lm
$B/test_offload_rings.o: tests/plugin/test_offload.c $B/settings
	@mkdir -p $B
	$(COMPILE) -DZERO_WITH_URING -c -o $@ $<
$B/test_offload_rings: $B/test_offload_rings.o $B/rings.o
	$(COMPILE) $(FILED) $(RINGS) -o $@ $(filter %.o,$^) -lm
$B/test_bounds: tests/plugin/test_bounds.c $B/settings
	$(COMPILE) -UZERO_WITH_MPI -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -Wno-unused-function -o $@ $< -lm
# Its table is proofs.txt, which `make prove` proves.
$B/proofs/proofs.h: tests/proofs/proofs.txt
	@mkdir -p $(@D)
	@awk '!/^\#/ && NF { print "PROOF(" $$1 ")" }' $< >$@
$B/test_proofs: $(wildcard tests/proofs/*.c) tests/proofs/lists.h tests/proofs/proof.h $B/proofs/proofs.h $B/settings
	$(COMPILE) -UZERO_WITH_MPI -O1 -fsanitize=undefined -fno-sanitize-recover=all -Wno-unused-function -Wno-unused-variable -I$B/proofs -o $@ $(filter %.c,$^) -lm
# tests/orders: the program is instrumented, and scheduler.c stands in the place of the sanitizer's library.
$B/test_orders.o $B/test_orders_lane.o: OMP :=
$B/test_orders.o $B/test_orders_lane.o: COMPILE += -UZERO_WITH_MPI -fsanitize=thread -fno-pie -Wno-unused-function -Wno-unused-variable \
	'-DZERO_OWN_TRANSPORTS="../../tests/orders/net.h"'
$B/orders/%.o: tests/orders/%.c $B/settings
	@mkdir -p $(@D)
	$(COMPILE) -fno-pie -c -o $@ $<
$B/test_orders: $(addprefix $B/,test_orders.o orders/scheduler.o orders/orders_lane.o orders/net.o)
	$(COMPILE) -no-pie -o $@ $^ -lm
$B/test_orders_lane: $(addprefix $B/,test_orders_lane.o orders/scheduler.o orders/orders_thread.o)
	$(COMPILE) -no-pie -o $@ $^ -lm
$B/test_check: $B/test_check.o $B/checked.o
	$(COMPILE) -o $@ $(filter %.o,$^) -lm
$B/test_gpt2 $B/test_gpt2_tiles $B/test_gpt2_layers $B/test_gpt2_frozen $B/test_gpt2_lora $B/test_gpt2_ops $B/test_gpt2_parallel $B/test_gpt2_context $B/test_gpt2_experts $B/test_gpt2_pipeline: $B/%: %.c $(PLUGIN) $(GPT2)
	$(COMPILE) -I. -o $@ $< $(PLUGIN) $(GPT2) $(LIBS)
# A processor that computes wrongly: tests/gpt2/flips.h.
FLIPPED = $(call wrapped,zero_forward_begin zero_forward_end zero_backward_begin zero_backward_end zero_group_open zero_pass_begin $(addprefix ops_,linear linear_dx linear_dw linear_gelu linear_dx_gelu linear_residual norm norm_backward attention attention_backward hash))
$B/test_gpt2_recheck: tests/gpt2/test_gpt2_recheck.c $B/flips.o $(PLUGIN) $(GPT2)
	$(COMPILE) $(FLIPPED) -I. -o $@ $(filter %.c %.o,$^) $(LIBS)
$B/flipped/train_gpt2_zero: $B/unmeasured/train_gpt2_zero.o $(filter-out %/train_gpt2_zero.o,$(TRAINER)) $B/plan_plugin.o $(GPT2) $B/flips.o
	@mkdir -p $(@D)
	$(COMPILE) $(FLIPPED) -o $@ $(filter %.o,$^) $(LIBS)
$B/flips.o: tests/gpt2/flips.c $B/settings
	@mkdir -p $B
	$(COMPILE) -c -o $@ $<
$B/test_launch: tests/launch/test_launch.c $(PLUGIN) $(LAUNCH)
	$(COMPILE) -I. -o $@ $< $(PLUGIN) $(LAUNCH) -lm
$B/test_products: tests/gpt2/test_products.c $B/matmul.o $B/products.o $B/products_text.o
	$(COMPILE) -I. -o $@ $(filter %.c %.o,$^) -ldnnl -lm
$B/test_pipeline: tests/gpt2/test_pipeline.c $(PLUGIN) $(PIPES)
	$(COMPILE) -I. -o $@ $< $(PLUGIN) $(PIPES) -lm
$B/test_report: tests/report/test_report.c $(addprefix $B/,report.o plan_rows.o progress.o step_line.o pace.o hellaswag.o eval_file.o data_file.o)
	$(COMPILE) -I. -o $@ $(filter %.c %.o,$^) -lm
$B/test_observe: tests/report/test_observe.c $(addprefix $B/,trace.o clocks.o breakdown.o comms_table.o flops_table.o scalars.o report.o) $(PLUGIN) $(GPT2)
	$(COMPILE) -I. -o $@ $(filter %.c %.o,$^) $(LIBS)
$(filter-out %/zero_ckpt,$(CKTESTS)) $B/test_checkpoint_bench: $B/%: %.c $(PLUGIN) $(CKPT)
	$(COMPILE) -I. -DFUZZ_MAIN -o $@ $< $(PLUGIN) $(CKPT) -lcjson -lm
$B/zero_ckpt: $B/zero_ckpt.o $(PLUGIN) $(GPT2) $(MODELS) $(CKPT) $B/gpt2_values.o $B/report.o
	$(COMPILE) -o $@ $^ $(LIBS)
$B/test_model_files $B/fuzz_model_files: $B/%: %.c $(PLUGIN) $(GPT2) $(MODELS) $(CKPT) $B/gpt2_values.o
	$(COMPILE) -I. -DFUZZ_MAIN -o $@ $< $(filter %.o,$^) $(LIBS)
$B/test_deepspeed_load: $B/%: %.c $(PLUGIN) $(GPT2) $(CKPT) $B/gpt2_values.o
	$(COMPILE) -I. -o $@ $(filter %.c %.o,$^) $(LIBS)
$B/test_schedule $B/test_ds_config $B/fuzz_ds_config: $B/%: %.c $(DSCONF)
	$(COMPILE) -I. -DFUZZ_MAIN -o $@ $< $(DSCONF) -lcjson -lm
$B/fuzz_data: tests/fuzz/fuzz_data.c $(addprefix $B/,data_file.o token_file.o eval_file.o tokenizer.o)
	$(COMPILE) -I. -DFUZZ_MAIN -o $@ $(filter %.c %.o,$^)
$B/fuzz_machine: tests/fuzz/fuzz_machine.c $B/machine.o $(PLUGIN)
	$(COMPILE) -I. -DFUZZ_MAIN -o $@ $(filter %.c %.o,$^) -lcjson -lm
$B/test_host_layers.o: tests/hosts/test_host_layers.cc $B/settings
	@mkdir -p $B
	$(call short,CXX)$(CXX) -std=c++17 -g $(OPT) -ffp-contract=off -fno-math-errno $(OMP) -pthread $(WARN) -I. -MMD -MP -c -o $@ $<
# Hosts have what a host copies.
$B/test_host_layers: $B/test_host_layers.o $B/lib/zero_plugin.o
	$(COMPILE) -o $@ $^ -lstdc++ -lm
$B/test_host_own $B/test_host_llama: $B/%: %.c $B/lib/zero_plugin.o
	$(COMPILE) -o $@ $< $B/lib/zero_plugin.o -lm
$B/host_%: tests/hosts/%.c $(PLUGIN)
	$(COMPILE) -I. -o $@ $< $(PLUGIN) -lm
$B/checked.o: OPT := -O1
$B/checked.o: zero_plugin.cu $B/settings
	@mkdir -p $B
	$(COMPILE) -DZERO_CHECK=1 -x c -c -o $@ $<
$B/test_ease_checked $B/test_lend_checked $B/test_order_checked $B/test_rows_checked: $B/%_checked: %.c $B/checked.o
	$(COMPILE) -DTEST_CHECKED=1 -o $@ $(filter %.c %.o,$^) -lm
# The ranks are those of mpirun: see tests/comm/test_mpi.sh.
$B/test_rows_mpi: test_rows.c $B/zero_plugin.o
	$(COMPILE) -DROWS_MPI -o $@ $(filter %.c %.o,$^) -lm
# The plugin and the program are compiled with fast math; the tests are not, so that they can detect a NaN.
# test-all sets FASTOPT=-Ofast.
FASTOPT ?= -O1 -ffast-math
FAST    = $(FASTOPT) -DZERO_FAST_MATH=1
$B/fast/zero_plugin.o: zero_plugin.cu $B/settings
	@mkdir -p $B/fast
	$(COMPILE) $(FAST) -x c -c -o $@ $<
$B/fast/%.o: %.c $B/settings
	@mkdir -p $B/fast
	$(COMPILE) -c -o $@ $<
$B/test_fast_math $B/test_scale_fast: $B/test_%: $B/fast/test_%.o $B/fast/zero_plugin.o
	$(COMPILE) $(FAST) -o $@ $(filter %.o,$^) -lm
$B/fast/test_scale_fast.o: tests/plugin/test_scale.c $B/settings
	@mkdir -p $B/fast
	$(COMPILE) -c -o $@ $<
$B/abi_rows.h: zero_plugin.h tests/plugin/abi.awk $B/settings
	@sed '/^ *# *include/d' $< | $(CC) -std=c11 -E -P -x c - | awk -f tests/plugin/abi.awk >$@
$B/test_abi: tests/plugin/test_abi.c $B/abi_rows.h $(PLUGIN)
	$(COMPILE) -I$B -o $@ $< $(PLUGIN) -lm
$B/test_hashes: tests/plugin/hashes.c $(PLUGIN)
	$(COMPILE) -o $@ $< $(PLUGIN) -lm
$B/test_%: $B/test_%.o $(PLUGIN)
	$(COMPILE) -o $@ $(filter %.o,$^) -lm
$B/bench_%: tests/bench/bench_%.c $(PLUGIN)
	$(COMPILE) -o $@ $< $(PLUGIN) -lm
$B/bench_ops: tests/bench/bench_ops.c $(PLUGIN) $(GPT2)
	$(COMPILE) -I. -o $@ $< $(PLUGIN) $(GPT2) $(LIBS)
$B/bench_links: tests/bench/bench_links.c $(PLUGIN) $(SIMULATOR) $B/machine.o $B/options.o $B/train_options.o $(LAUNCH) $(DSCONF)
	$(COMPILE) -I. -o $@ $< $(filter %.o,$^) -lcjson -lm
# libFuzzer's targets, compiled by clang. They share the objects.
F       = $B/libfuzzer
FUZZER  = clang -std=c11 -D_GNU_SOURCE -g -O1 -fsanitize=address,undefined,fuzzer
$F/settings: FORCE
	$(call keep,$(FUZZER) $(shell clang --version 2>/dev/null | head -n 1))
$F/%.o: %.cu $F/settings
	@mkdir -p $F
	$(call short,CLANG)$(FUZZER)-no-link -MMD -MP -x c -c -o $@ $<
$F/%.o: %.c $F/settings
	@mkdir -p $F
	$(call short,CLANG)$(FUZZER)-no-link -MMD -MP -I. -c -o $@ $<
$F/ds_config: $(DSCONF:$B/%=$F/%)
$F/checkpoint: $(CKPT:$B/%=$F/%)
$F/model_files: $(patsubst $B/%,$F/%,$(CKPT) $(GPT2) $(MODELS) $B/gpt2_values.o)
$F/data: $(addprefix $F/,data_file.o token_file.o eval_file.o tokenizer.o)
$F/machine: $F/machine.o
$F/ds_config $F/checkpoint $F/model_files $F/data $F/machine: $F/%: $F/fuzz_%.o $F/zero_plugin.o
	$(call short,CLANG)$(FUZZER) -o $@ $^ $(LIBS)
unit: $(UNIT)
# WITHOUT: programs that are not built
tests: $(filter-out $(addprefix $B/,$(WITHOUT)),$(TESTS)) $B/zero_plan $B/page $B/train_gpt2_zero $B/unmeasured/train_gpt2_zero $B/flipped/train_gpt2_zero $B/tokens lib data
test test-quick test-long test-all: # builds what is needed, on all processors
	@sh tests/run.sh $(patsubst test,main,$(@:test-%=%)) $B
has-cuda: # prints something if CUDA's headers are there
	@$(if $(HAS_CUDA),echo yes,:)
test-llmc: # LLMC=path of a checkout
	@LLMC='$(LLMC)' sh tests/llmc/test_llmc.sh $B
bench: tests $B/test_checkpoint_bench $B/bench_step $B/bench_ops $B/bench_reduce $B/bench_codec $B/bench_ranks
	@sh tests/bench/bench.sh $B
ranks: $B/bench_ranks
	@sh tests/bench/bench_ranks.sh $B

MINUTES ?= 90
converge: $B/train_gpt2_zero data
	@sh tests/bench/converge.sh $B $(MINUTES)
HOURS ?= 1
ASAN    = -O1 -march=native -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
prove: # PROOFS=quick, or names of tests/proofs/proofs.txt
	@sh tests/proofs/prove.sh install
	@sh tests/proofs/prove.sh $B $(or $(PROOFS),all)
soak: data $B/unmeasured/train_gpt2_zero $B/test_checkpoint_kill
	@$(MAKE) -s B=$B/asan OPT='$(ASAN)' MPICC= WARN= $(addprefix $B/asan/fuzz_,ds_config checkpoint model_files data machine)
	@python3 tests/tools/soak.py $B $(HOURS) $(or $(SEED),$(shell date +%s)) $(ROWS)
mutants: | libraries
	@mkdir -p $B && BUDGET='$(or $(BUDGET),20)' python3 tests/tools/mutants.py $B
same: # BASE=a commit: is nothing lost since then?
	@sh tests/tools/same.sh $B '$(BASE)' '$(CC) $(CFLAGS)' $(if $(HAS_CUDA),'$(ECXX)')
speed: $B/train_gpt2_zero data # BASE=a commit: is this tree as fast?
	@sh tests/bench/speed.sh $B '$(BASE)' '$(MAKE)'

lib: $B/lib/libzero_plugin.a $B/lib/$(SONAME)
$B/lib/settings: FORCE
	$(call keep,$(SETTINGS) $(LIBFLAGS))
$B/lib/zero_plugin.o: $B/drop/zero_plugin.cu $B/lib/settings
	@mkdir -p $B/lib
	$(call short,CC)$(CC) $(CFLAGS) $(LIBFLAGS) -fPIC -MMD -MP -x c -c -o $@ $<
$B/lib/libzero_plugin.a: $B/lib/zero_plugin.o
	$(call short,AR)$(AR) rcs $@ $<
$B/lib/$(SONAME): $B/lib/zero_plugin.o
	$(call short,CC)$(CC) $(CFLAGS) -shared -Wl,-soname,$(SONAME) -o $@ $< -lm
install: lib
	mkdir -p $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig
	cp $B/drop/zero_plugin.h $(DESTDIR)$(PREFIX)/include/
	cp $B/lib/libzero_plugin.a $B/lib/$(SONAME) $(DESTDIR)$(PREFIX)/lib/
	ln -sf $(SONAME) $(DESTDIR)$(PREFIX)/lib/libzero_plugin.so
	@printf '%s\n' 'prefix=$(PREFIX)' 'Name: zero_plugin' 'Description: ZeRO sharded data-parallel training for C' \
	    'Version: $(VERSION)' 'Libs: -L$${prefix}/lib -lzero_plugin' 'Libs.private: $(OMP) -pthread -lm' \
	    'Cflags: -I$${prefix}/include' >$(DESTDIR)$(PREFIX)/lib/pkgconfig/zero_plugin.pc

golden: $B/train_gpt2_zero data
	@sh tests/tools/golden.sh $B > tests/tools/golden.txt
check:
	@sh tests/tools/check.sh "$(SOURCES)" "$(CC)" "$(NVCC)" $B

clean:
	rm -rf $B train_gpt2_zero zero_ckpt zero_plan
-include $(wildcard $B/*.d $B/unmeasured/*.d $B/fast/*.d $B/lib/*.d $B/cuda/*.d $B/emulated/*.d $B/libfuzzer/*.d)
endif
