/* Reads a command line against a table of options, in every form that people write: -i 0, -i=0, --id 0, --id=0, -qx. */
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

static int is_flag(char letter, const struct option *options, unsigned many)
{
    for (unsigned i = 0; i < many; i++)
        if (options[i].takes == NOTHING && options[i].brief && options[i].brief[1] == letter && !options[i].brief[2]) return (int)i;
    return -1;
}

/* Several flags in one word: -qx. */
static int read_cluster(const char *word, const struct option *options, unsigned many, const char **values)
{
    if (word[0] != '-' || !word[1] || word[1] == '-') return 0;
    for (const char *letter = word + 1; *letter; letter++)
        if (is_flag(*letter, options, many) < 0) return 0;
    for (const char *letter = word + 1; *letter; letter++) values[is_flag(*letter, options, many)] = "";
    return 1;
}

/* The first word decides what the program is asked, so a wrong one there is another error than a wrong one later. */
static int say_unknown(const char *word, int first)
{
    printf("ERROR: Option %s is not recognized. Please run 'nvidia-smi -h'%s.\n\n", word, first ? "" : " for help");
    return first ? EXIT_BAD_OPTION : EXIT_BAD_INPUT;
}

static int say_incomplete(const char *word)
{
    printf("ERROR: Option %s is missing its value. Please run 'nvidia-smi -h' for help.\n\n", word);
    return EXIT_BAD_OPTION;
}

int options_read(int count, char **words, const struct option *options, unsigned many, const char **values)
{
    for (unsigned i = 0; i < many; i++) values[i] = 0;
    for (int i = 0; i < count; i++) {
        const char *value = 0;
        int at = find(words[i], options, many, &value);
        if (at < 0) {
            if (read_cluster(words[i], options, many, values)) continue;
            return say_unknown(words[i], i == 0);
        }
        enum takes takes = options[at].takes;
        int next = !value && i + 1 < count && (takes == VALUE || (takes == MAYBE && words[i + 1][0] != '-'));
        if (takes != NOTHING && next) value = words[++i];
        if (takes == VALUE && !value) return say_incomplete(words[i]);
        if (takes == NOTHING && value) return say_unknown(words[i], i == 0);
        values[at] = value ? value : "";
    }
    return EXIT_GOOD;
}
