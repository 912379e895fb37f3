# page.mk - builds one page about a run; the Makefile includes it.
PAGETEXT = adapters/page/page.html adapters/page/page.css
$B/page_text.c: $(PAGETEXT) adapters/page/page.mk
	@mkdir -p $B
	@{ echo '#include "adapters/page/page_text.h"'; for file in $(PAGETEXT); do \
	    echo "const char *const page_$${file##*.}[] = {"; sed 's/[\\"]/\\&/g; s/^/"/; s/$$/",/' $$file; echo 'NULL};'; done; } | \
	    sed '1i #include <stddef.h>' >$@
$B/page_text.o: $B/page_text.c $B/settings
	$(COMPILE) -I. -c -o $@ $<
$B/page: $B/page.o $B/page_input.o $B/page_draw.o $B/page_text.o $B/options.o $B/report.o
	$(COMPILE) -o $@ $^ -lcjson -lm
# LOG, CSV, TRACE, PEERS, LINKS: input files of the page, each if it exists
LOG    ?= $(firstword $(wildcard log/main.log))
CSV    ?= $(wildcard $B/compare.csv)
TRACE  ?= $(wildcard $B/trace.json)
PEERS  ?= $(wildcard $B/peers.csv)
LINKS  ?= $(wildcard $B/links.csv)
report: $B/page # after a comparison or a run: build/report.html
	$B/page --out $B/report.html $(if $(LOG),--log $(LOG)) $(if $(CSV),--csv $(CSV)) $(if $(TRACE),--trace $(TRACE)) $(if $(PEERS),--peers $(PEERS)) $(if $(LINKS),--links $(LINKS)) $(ARGS)
# steps over slow links between hosts, with every method (root, an idle machine, half an hour): build/links.csv, build/links.svg
links: $B/page
	@sh tests/bench/links.sh $B table; code=$$?; $B/page --out $B/links.html --links $B/links.csv --svg $B; exit $$code
links-check: # compares simulated with measured steps, within 10 %, five minutes: build/links-check.csv
	@sh tests/bench/links.sh $B check
