/* Reads a command line against a table of options, in every form that people write: -i 0, -i=0, --id 0, --id=0. */
#include <stdio.h>
#include <string.h>
#include "smi.h"

/* Whether a word is this option, alone or with `=value`. */
static int matches(const char *word, const char *name, const char **value)
{
    size_t length = name ? strlen(name) : 0;
    if (!length || strncmp(word, name, length)) return 0;
    if (word[length] == '=') *value = word + length + 1;
    return !word[length] || word[length] == '=';
}

static int find(const char *word, const struct option *options, unsigned many, const char **value)
{
    for (unsigned i = 0; i < many; i++)
        if (matches(word, options[i].brief, value) || matches(word, options[i].full, value)) return (int)i;
    return -1;
}

/* The tool, its queries, settings and commands each have a message of their own. */
static int say_unknown(const char *word, enum asker asker)
{
    if (asker == COMMAND) printf("Option \"%s\" is not recognized.\n", word);
    else printf("ERROR: Option %s is not recognized. Please run 'nvidia-smi -h'%s.\n\n", word, asker == TOOL ? "" : " for help");
    return asker == TOOL || asker == SETTING ? EXIT_BAD_OPTION : EXIT_BAD_INPUT;
}

static int say_incomplete(const char *word, enum asker asker)
{
    if (asker == COMMAND) {
        printf("Option \"%s\" is missing its value.\n", word);
        return EXIT_BAD_INPUT;
    }
    printf("ERROR: Option %s is missing its value. Please run 'nvidia-smi -h' for help.\n\n", word);
    return EXIT_BAD_OPTION;
}

int options_read(int count, char **words, enum asker asker, const struct option *options, unsigned many, const char **values)
{
    for (unsigned i = 0; i < many; i++) values[i] = 0;
    for (int i = 0; i < count; i++) {
        const char *value = 0;
        int at = find(words[i], options, many, &value);
        if (at < 0) return say_unknown(words[i], asker);
        enum takes takes = options[at].takes;
        int next = !value && i + 1 < count && (takes == VALUE || (takes == MAYBE && words[i + 1][0] != '-'));
        if (takes != NOTHING && next) value = words[++i];
        if (takes == VALUE && !value) return say_incomplete(words[i], asker);
        if (takes == NOTHING && value) return say_unknown(value, asker);
        values[at] = value ? value : "";
    }
    return EXIT_GOOD;
}
