#include <stdio.h>
#include "reader.h"

int main(void)
{
    static struct cards cards;
    static struct page page;
    int code = cards_open(&cards);
    for (unsigned i = 0; i < cards.count; i++)
        if (card_read(&cards.card[i], &page) == READ_OK) printf("GPU %u: %s (UUID: %s)\n", i, page.product, page.uuid);
    return code;
}
