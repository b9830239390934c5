/* Completion for two shells, written from the table of options. */
#include "src/completion.h"
#include "src/options_table.h"

#include <stdio.h>

/* s with every character of `what` behind a backslash, and brackets as they stand. */
static void put_escaped(const char *s, const char *what)
{
    for (; *s; s++) {
        if (strchr(what, *s))
            putchar('\\');
        putchar(*s);
    }
}

/* The words that an option takes, separated by blanks; nothing for one that takes any. */
static void put_words(const struct option_spec *s)
{
    if (s->kind != OPTION_WORD && s->kind != OPTION_SWITCH)
        return;
    for (const char *w = s->arg; *w; w++)
        putchar(*w == '|' ? ' ' : *w);
}

static bool takes_path(const struct option_spec *s)
{
    return s->arg && (!strcmp(s->arg, "FILE") || !strcmp(s->arg, "DIR"));
}

static void write_bash(void)
{
    puts("# bash completion of laguna-offload\n"
         "_laguna_offload() {\n"
         "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words=\n"
         "    case ${COMP_CWORD}:$prev in\n    1:*) words='");
    for (const struct command_spec *c = command_table(); c->name; c++)
        printf("%s ", c->name);
    puts("--help --version' ;;");
    for (const struct option_spec *s = option_table(); s->name; s++) {
        if (s->kind == OPTION_WORD || s->kind == OPTION_SWITCH) {
            printf("    *:--%s) words='", s->name);
            put_words(s);
            puts("' ;;");
        } else if (takes_path(s)) {
            printf("    *:--%s) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n", s->name);
        } else if (s->arg) {
            printf("    *:--%s) return ;;\n", s->name);
        }
    }
    puts("    *)\n        case ${COMP_WORDS[1]} in");
    for (const struct command_spec *c = command_table(); c->name; c++) {
        printf("        %s) words='", c->name);
        for (const struct option_spec *s = option_table(); s->name; s++)
            if (s->commands >> c->command & 1)
                printf("--%s ", s->name);
        puts("' ;;");
    }
    puts("        esac\n"
         "        [[ $cur == -* ]] || { COMPREPLY=($(compgen -f -- \"$cur\")); return; } ;;\n"
         "    esac\n"
         "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
         "}\n"
         "complete -o filenames -F _laguna_offload laguna-offload");
}

static void write_zsh_option(const struct option_spec *s)
{
    printf("        '--%s[", s->name);
    put_escaped(s->help, "[]:\\");
    putchar(']');
    if (s->arg) {
        printf(":%s:", s->name);
        if (takes_path(s))
            fputs("_files", stdout);
        if (s->kind == OPTION_WORD || s->kind == OPTION_SWITCH) {
            putchar('(');
            put_words(s);
            putchar(')');
        }
    }
    puts("'");
}

static void write_zsh(void)
{
    puts("#compdef laguna-offload\n"
         "_laguna_offload() {\n"
         "    local -a commands options\n"
         "    commands=(");
    for (const struct command_spec *c = command_table(); c->name; c++) {
        printf("        '%s:", c->name);
        put_escaped(c->help, ":");
        puts("'");
    }
    puts("    )\n"
         "    (( CURRENT == 2 )) && { _describe command commands; return; }\n"
         "    case $words[2] in");
    for (const struct command_spec *c = command_table(); c->name; c++) {
        printf("    %s) options=(\n", c->name);
        for (const struct option_spec *s = option_table(); s->name; s++)
            if (s->commands >> c->command & 1)
                write_zsh_option(s);
        puts("        '*:file:_files') ;;");
    }
    puts("    esac\n"
         "    shift words; (( CURRENT-- ))\n"
         "    _arguments $options\n"
         "}\n"
         "_laguna_offload \"$@\"");
}

void completion_write(const char *shell)
{
    if (!strcmp(shell, "zsh"))
        write_zsh();
    else
        write_bash();
}
