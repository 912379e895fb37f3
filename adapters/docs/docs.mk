# docs.mk - writes the generated pages and pictures of adapters/docs; the Makefile includes it.
DOCS = adapters/docs
SAMPLE = $(DOCS)/sample
$B/docs_pages: $(DOCS)/docs_pages.c adapters/options/options.c adapters/schedule/schedule.c $(wildcard adapters/options/*.[ch] adapters/schedule/*.h) adapters/ds_config/ds_table.h
	@mkdir -p $B
	$(call short,CC)$(CC) -std=c11 -D_GNU_SOURCE -O1 $(WARN) -I. -o $@ $(filter %docs_pages.c %/options.c %/schedule.c,$^) -lm
# All generated files, in the folder of the same name: flags and keys from their tables, memory and its tables from zero_plan,
# the sample page and its pictures from the files in adapters/docs/sample, links.svg from links.csv there.
made = mkdir -p $1/sample && $B/docs_pages flags >$1/flags.md && $B/docs_pages config >$1/config-json.md && \
	sh $(DOCS)/memory.sh $B/zero_plan >$1/memory.svg && \
	sh $(DOCS)/planned.sh $B/zero_plan $(DOCS)/memory.md >$1/memory.md && \
	sh $(DOCS)/planned.sh $B/zero_plan $(DOCS)/plan.md >$1/plan.md && \
	$B/page --log $(SAMPLE)/main.log --csv $(SAMPLE)/compare.csv --trace $(SAMPLE)/trace.json --out $1/sample/report.html --svg $1/sample >/dev/null && \
	$B/page --links $(SAMPLE)/links.csv --out $1/links.html --svg $1 >/dev/null
MADE = flags.md config-json.md memory.svg memory.md plan.md links.svg $(addprefix sample/,report.html loss.svg memory.svg timeline.svg)
.PHONY: docs docs-check
docs: $B/docs_pages $B/page $B/zero_plan # after a change of a flag, a key of DeepSpeed, the plan, or the report page
	@$(call made,$B/made)
	@for file in $(MADE); do cp $B/made/$$file $(DOCS)/$$file || exit 1; done
docs-check: $B/docs_pages $B/page $B/zero_plan
	@$(call made,$B/made)
	@for file in $(MADE); do cmp $B/made/$$file $(DOCS)/$$file || { echo 'a generated page is not current: make docs'; exit 1; }; done
