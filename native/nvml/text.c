/* What compilers call without being asked; the library has no C library to take it from. */
#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
    unsigned char *a = to;
    const unsigned char *b = from;
    while (size--) *a++ = *b++;
    return to;
}

void *memset(void *at, int byte, size_t size)
{
    unsigned char *a = at;
    while (size--) *a++ = (unsigned char)byte;
    return at;
}

void *memmove(void *to, const void *from, size_t size)
{
    unsigned char *a = to;
    const unsigned char *b = from;
    if (a < b) for (size_t i = 0; i < size; i++) a[i] = b[i]; /* not memcpy: these may overlap */
    else while (size--) a[size] = b[size];
    return to;
}
