#ifndef LAGUNA_MANUAL_H
#define LAGUNA_MANUAL_H

/* The page of the manual, as the build found it: a text that is always at hand. */
const char *manual_text(void);

#endif
