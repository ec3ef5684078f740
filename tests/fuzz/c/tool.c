#include "tool.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdint.h>
#include <unistd.h>

#include "reader.h"

int tool_main(int count, char **words);

static jmp_buf ended;
static struct cards *volatile opened;

/* In place of the tool's own: waiting is where a loop goes on for ever. */
void __wrap_sleep_milliseconds(uint64_t many);
void __wrap_sleep_milliseconds(uint64_t many)
{
    (void)many;
    longjmp(ended, 1);
}

/* In place of the tool's own: a word of an input must not become a file. */
int __wrap_print_to(const char *file);
int __wrap_print_to(const char *file)
{
    (void)file;
    return 0;
}

/* Beside the tool's own, which leaves it to the end of its process to unmap the pages. */
int __real_cards_open(struct cards *cards);
int __wrap_cards_open(struct cards *cards);
int __wrap_cards_open(struct cards *cards)
{
    opened = cards;
    return __real_cards_open(cards);
}

void tool_run(int count, char **words)
{
    static int silent;
    if (!silent) {
        silent = open("/dev/null", O_WRONLY);
        dup2(silent, STDOUT_FILENO);
    }
    opened = 0;
    if (!setjmp(ended)) tool_main(count, words);
    if (opened) cards_close(opened);
}
