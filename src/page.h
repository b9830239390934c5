#ifndef LAGUNA_PAGE_H
#define LAGUNA_PAGE_H

#include "src/http_conn.h"

/* The page at /: one file, src/page.html, in the program. */
void page_give(struct conn *c);

#endif
