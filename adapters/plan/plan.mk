# plan.mk - builds the planner; the Makefile includes it.
PLANNER = $(addprefix $B/,plan.o plan_ops.o plan_plugin.o machine.o)
# gpt2.c gets the scratch memory of the planned device instead of this one's
PLANOPS = -Wl,--wrap=ops_scratch_bytes,--wrap=ops_logits_budget
PLANNED = $(PLANNER) $B/layout.o $(GPT2) $(MODELS) $(CKPT) $B/gpt2_values.o $B/expert_saves.o
zero_plan: $B/zero_plan FORCE
	$(place)
SIMULATOR = $B/wire.o $B/overlap.o
# -z auto
AUTO    = $(addprefix $B/,auto.o auto_space.o auto_time.o auto_print.o plan_request.o) $(SIMULATOR)
CHOICE  = $(addprefix $B/,auto_run.o measure.o plan.o machine.o) $(AUTO)
$B/zero_plan: $B/zero_plan.o $B/plan_print.o $B/scale.o $(AUTO) $B/page_draw.o $B/page_text.o $B/measure.o $B/options.o $B/train_options.o $B/train_resolve.o $B/report.o $B/run_note.o $B/pace.o $(LAUNCH) $(DSCONF) $(PLANNED)
	$(COMPILE) -o $@ $^ $(PLANOPS) $(LIBS)
$B/test_plan: tests/plan/test_plan.c $(PLANNED)
	$(COMPILE) -I. -o $@ $(filter %.c %.o,$^) $(PLANOPS) $(LIBS)
$B/test_auto: tests/plan/test_auto.c $(AUTO) $B/options.o $B/train_options.o $B/train_resolve.o $(LAUNCH) $(DSCONF) $(PLANNED)
	$(COMPILE) -I. -o $@ $(filter %.c %.o,$^) $(PLANOPS) $(LIBS)
$B/test_wire: tests/plan/test_wire.c $(SIMULATOR) $B/options.o $B/train_options.o $(LAUNCH) $(DSCONF) $(PLANNED)
	$(COMPILE) -I. -o $@ $(filter %.c %.o,$^) $(PLANOPS) $(LIBS)
plan: zero_plan # ARGS="-e gpt2:d48 -pn 64 -dt bf16 --memory 80G"
	./zero_plan $(or $(ARGS),-e gpt2:d48 -pn 64 -dt bf16 --memory 80G)
machine: zero_plan # measures this machine's rates for zero_plan --machine
	@mkdir -p $B
	./zero_plan --measure $B/machine.txt $(ARGS)
tune: zero_plan train_gpt2_zero data # runs the best three plans of -z auto: ARGS="-e d12 -pn 2 -t 64 -d 2048 --memory 2G"
	@sh adapters/plan/tune.sh $B $(or $(ARGS),-pn 2 -d 3072)
# simulates weak scaling: build/scale.csv and two pictures. MACHINE: a file of measured rates
MACHINE ?= adapters/plan/card.txt
scale: zero_plan # ARGS="-e gpt2:d48 -b 8 -t 1024 -dt bf16"
	./zero_plan --machine $(MACHINE) $(or $(ARGS),-e gpt2:d48 -b 8 -t 1024 -dt bf16) --scale $B/scale.csv --pictures $B
