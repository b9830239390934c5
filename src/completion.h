#ifndef LAGUNA_COMPLETION_H
#define LAGUNA_COMPLETION_H

/* Write to stdout what makes a shell, "bash" or "zsh", complete commands, options and the words
 * that an option takes: from the table, so that it is never behind the program. */
void completion_write(const char *shell);

#endif
