/* page_text.h - page.html and page.css as lines, NULL behind the last: page_text.c, which make
   writes from the two files, so that the page's text is a page. */
#ifndef PAGE_TEXT_H
#define PAGE_TEXT_H

extern const char *const page_html[];
extern const char *const page_css[];

#endif
