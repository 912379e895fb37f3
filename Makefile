# make deps            install what is missing          make test      all tests, at most 10 minutes
# make train_gpt2_zero build the trainer                make check     format, linters, both compilers
# make compare         DDP against ZeRO-1, 2, 3         make bench     measure against MPI and memory
# make data            token files of tiny Shakespeare  make test-long what CI adds; test-all: everything
# Settings: ARGS="-e d12 -t 64 -b 4 -pn 2" (compare), CC, NVCC, MPICC (empty: without MPI), OPT, B.

B      ?= build
OPT    ?= -O3 -march=native
OMP    ?= -fopenmp
NVCC   ?= nvcc
MPICC   = $(shell command -v mpicc)
WARN    = -Wall -Wextra -Wpedantic -Wshadow -Werror
CFLAGS  = -std=c11 -D_GNU_SOURCE -g $(OPT) -ffp-contract=off -fno-math-errno $(OMP) -pthread $(WARN)
COMPILE = $(or $(MPICC),$(CC)) $(if $(MPICC),-DZERO_WITH_MPI -DOMPI_SKIP_MPICXX) $(CFLAGS) -MMD -MP
NVFLAGS = -std=c++17 -O3 -fmad=false -Werror all-warnings -Xcompiler -Wall,-Wextra
ARCHS  ?= 90
GENCODE = $(foreach a,$(ARCHS),-gencode arch=compute_$(a),code=sm_$(a))

PLUGIN  = $B/zero_plugin.o
vpath %.c adapters/gpt2 adapters/launch adapters/schedule adapters/ds_config data
GPT2    = $B/gpt2.o $B/ops_cpu.o
DSCONF  = $B/ds_config.o $B/ds_text.o $B/ds_print.o $B/schedule.o
TRAINER = $B/train_gpt2_zero.o $B/launch.o $B/memory.o $(DSCONF) $B/data_file.o $B/token_file.o $B/tokenizer.o
LIBS    = -ldnnl -lxxhash -lcjson -lm
UNIT    = $(addprefix $B/,test_unit test_model test_bits test_faults test_memory test_scale test_optimizers)
TESTS   = $(UNIT) $(addprefix $B/,test_gpt2_ops test_gpt2 test_launch test_schedule test_ds_config fuzz_ds_config)
DATA    = $B/data/tiny_char_train.bin $B/data/tiny_gpt2_train.bin
SOURCES = zero_plugin.h zero_plugin.cu train_gpt2_zero.cu $(wildcard adapters/*/*.[ch] data/*.[ch] tests/*.[ch])

.DELETE_ON_ERROR:
.PHONY: all deps libraries data compare test test-long test-all check bench cuda unit tests clean
all: train_gpt2_zero data

deps:
	@sh adapters/deps.sh install $(DEPS)
libraries:
	@sh adapters/deps.sh check $(CC)

train_gpt2_zero: $B/train_gpt2_zero
	@cp $< $@
$B/train_gpt2_zero: $(TRAINER) $(PLUGIN) $(GPT2)
	$(COMPILE) -o $@ $^ $(LIBS)

$B/%.o: %.cu | libraries
	@mkdir -p $B
	$(COMPILE) -x c -c -o $@ $<
$B/%.o: %.c | libraries
	@mkdir -p $B
	$(COMPILE) -I. -c -o $@ $<

$B/tokens: $B/tokens.o
	$(COMPILE) -o $@ $^ -lpcre2-8
data: $(DATA)
$B/data/tiny_char_train.bin: $B/tokens
	@mkdir -p $B/data
	$B/tokens char data/tinyshakespeare.txt $B/data/tiny_char
$B/data/tiny_gpt2_train.bin: $B/tokens
	@mkdir -p $B/data
	$B/tokens gpt2 data/tinyshakespeare.txt $B/data/tiny_gpt2 data/gpt2.tiktoken

compare: train_gpt2_zero data
	./train_gpt2_zero -z 0,1,2,3 -pn 2 -csv $B/compare.csv $(ARGS)

# ---- tests: every program ends with `N passed, N failed` ----
$(addprefix $B/,test_unit test_faults test_memory test_optimizers): $B/%: tests/%.c | libraries # they include the plugin
	@mkdir -p $B
	$(COMPILE) -o $@ $< -lm
$B/test_gpt2 $B/test_gpt2_ops: $B/%: tests/%.c $(PLUGIN) $(GPT2)
	$(COMPILE) -I. -o $@ $< $(PLUGIN) $(GPT2) $(LIBS)
$B/test_launch: tests/test_launch.c $(PLUGIN) $B/launch.o $B/memory.o
	$(COMPILE) -I. -o $@ $< $(PLUGIN) $B/launch.o $B/memory.o -lm
$B/test_schedule $B/test_ds_config $B/fuzz_ds_config: $B/%: tests/%.c $(DSCONF)
	$(COMPILE) -I. -DFUZZ_MAIN -o $@ $< $(DSCONF) -lcjson -lm
$B/test_%: tests/test_%.c $(PLUGIN)
	$(COMPILE) -o $@ $< $(PLUGIN) -lm
$B/bench_%: tests/bench_%.c $(PLUGIN)
	$(COMPILE) -o $@ $< $(PLUGIN) -lm
$B/libfuzzer: tests/fuzz_ds_config.c $(wildcard adapters/ds_config/*) adapters/schedule/schedule.c
	clang -std=c11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -o $@ $(filter %.c,$^) -lcjson -lm
unit: $(UNIT)
tests: $(TESTS) $B/train_gpt2_zero $B/tokens data
test: tests
	@sh tests/run.sh quick $B
test-long: tests
	@sh tests/run.sh long $B
test-all: tests
	@sh tests/run.sh all $B
bench: tests $B/bench_step $B/bench_reduce
	@sh tests/bench.sh $B

# ---- checks that compile but do not run ----
cuda: zero_plugin.cu train_gpt2_zero.cu
	@mkdir -p $B/cuda
	$(NVCC) $(NVFLAGS) $(GENCODE) -c -o $B/cuda/zero_plugin.o zero_plugin.cu
	$(NVCC) $(NVFLAGS) $(GENCODE) -c -o $B/cuda/train_gpt2_zero.o train_gpt2_zero.cu
check:
	@sh tests/check.sh "$(SOURCES)" "$(CC)" "$(NVCC)" $B

clean:
	rm -rf $B train_gpt2_zero
-include $(wildcard $B/*.d)
