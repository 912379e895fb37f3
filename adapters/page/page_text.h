/* page_text.h - the lines of page.html and page.css, NULL after the last. make writes page_text.c
   from these two files. */
#ifndef PAGE_TEXT_H
#define PAGE_TEXT_H

extern const char *const page_html[];
extern const char *const page_css[];

#endif
