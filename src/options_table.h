#ifndef LAGUNA_OPTIONS_TABLE_H
#define LAGUNA_OPTIONS_TABLE_H

#include "src/options.h"

/* The one list of commands and options: parsing, --help, the environment, the settings file
 * and the test of the manual all come from it. */

enum option_kind {
    OPTION_FLAG,        /* bool; takes no value on the command line */
    OPTION_SWITCH,      /* bool from on or off */
    OPTION_TEXT,        /* const char * */
    OPTION_WORD,        /* const char *: one of the words of `arg` */
    OPTION_ISA,         /* const char * */
    OPTION_DEVICE,      /* const char * */
    OPTION_INT,         /* int, min..max */
    OPTION_INT_AUTO,    /* int, min..max; 0 for auto */
    OPTION_INTS,        /* struct option_list, each min..max */
    OPTION_FLOAT,       /* float, min..max */
    OPTION_FLOAT_AUTO,  /* float, min..max; NaN for auto */
    OPTION_SHARE,       /* float, above 0 and at most 1 */
    OPTION_SEED,        /* uint64_t, and seed_set */
    OPTION_SIZE,        /* int64_t, bytes */
    OPTION_SIZE_AUTO,   /* int64_t, bytes; SIZE_AUTO for auto */
    OPTION_SIZES,       /* int64_t [OPTION_GPUS] */
    OPTION_STOP,        /* adds to stop */
    OPTION_VERBOSE, OPTION_QUIET,   /* log.level */
    OPTION_HELP, OPTION_VERSION,    /* the command line only */
};

struct option_spec {
    const char *name;           /* --name; LAGUNA_NAME; `name = value` in the file */
    char letter;                /* or 0 */
    const char *arg;            /* what its value is called; NULL: takes none */
    unsigned commands;          /* bits 1 << enum command */
    enum option_kind kind;
    size_t field;               /* in struct options */
    int min, max;
    const char *help;
};

struct command_spec {
    const char *name;
    enum command command;
    const char *operand;        /* "" where it takes none */
    const char *help;
};

/* Both end at a row whose name is NULL. */
const struct option_spec *option_table(void);
const struct command_spec *command_table(void);

/* The row of a command, or NULL. */
const struct command_spec *command_named(const char *name);
const struct command_spec *command_row(enum command c);

/* The row that a command has for an option (several commands may share a name), or NULL.
 * With CMD_NONE the first of that name. */
const struct option_spec *option_named(const char *name, enum command c);

/* The row that a command has for a letter, or NULL. */
const struct option_spec *option_lettered(char letter, enum command c);

/* Store a value.  `from` names the setting in messages: --temp, LAGUNA_TEMP, or a file, a
 * line and a key.  -EINVAL with what is allowed; -ENOTSUP for an ISA this machine lacks. */
int option_set(struct options *o, const struct option_spec *s, const char *from,
               const char *value, struct err *e);

/* Write the help of a command, or of the program with CMD_NONE, to stdout. */
void options_help(enum command c);

#endif
