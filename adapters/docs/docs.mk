# docs.mk - writes the generated pages and the picture of adapters/docs; the Makefile includes it.
DOCS = adapters/docs
$B/docs_pages: $(DOCS)/docs_pages.c adapters/options/options.c $(wildcard adapters/options/*.[ch]) adapters/ds_config/ds_table.h
	@mkdir -p $B
	$(call short,CC)$(CC) -std=c11 -D_GNU_SOURCE -O1 $(WARN) -I. -o $@ $(filter %docs_pages.c %/options.c,$^)
.PHONY: docs docs-check
docs: $B/docs_pages zero_plan # after a change of a flag, a key of DeepSpeed, or the plan
	$B/docs_pages flags >$(DOCS)/flags.md
	$B/docs_pages config >$(DOCS)/config-json.md
	sh $(DOCS)/memory.sh ./zero_plan >$(DOCS)/memory.svg
docs-check: $B/docs_pages
	@$B/docs_pages flags | cmp - $(DOCS)/flags.md && $B/docs_pages config | cmp - $(DOCS)/config-json.md || \
	    { echo 'a generated page is not current: make docs'; exit 1; }
