/* nvidia-smi with hostile arguments, one a line, over the page of an ordinary card. */
#include <stdlib.h>
#include <string.h>

#include "pages.h"
#include "tool.h"

enum { MOST = 32 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *words[MOST + 1] = {strdup("nvidia-smi")};
    int count = 1;
    pages_prepare();
    owner_answers((const uint8_t *)"0", 1);
    page_put_valid();
    for (size_t at = 0; at < size && count < MOST;) {
        const uint8_t *end = memchr(data + at, '\n', size - at);
        size_t length = end ? (size_t)(end - data) - at : size - at;
        words[count++] = strndup((const char *)data + at, length); /* of exactly its size, so that no byte more is read */
        at += length + 1;
    }
    tool_run(count, words);
    for (int i = 0; i < count; i++) free(words[i]);
    return 0;
}
