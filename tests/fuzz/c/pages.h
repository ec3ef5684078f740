/* A folder with a page or two, as hostile as an input makes them, an owner that answers settings, and what the kernel says. */
#ifndef SIMGPU_FUZZ_PAGES_H
#define SIMGPU_FUZZ_PAGES_H

#include <stddef.h>
#include <stdint.h>

/* Make the folder and start the owner, once; before each input. */
void pages_prepare(void);

/* Write the page: `data` as it is if it begins with an odd byte, else with a head that readers accept. The byte's other bits
 * are, from the second: whether there is another page, which begins like this one; whether the writer died while it wrote;
 * whether pages were brought along as firmware; whether what the kernel says of processes is of these bytes; and, with
 * three bits, the memory of the reader's container. */
void page_put(const uint8_t *data, size_t size);

/* The page of a card that was described by the project itself, for inputs that are no page. */
void page_put_valid(void);

/* Write over the page while it is read, with a head that readers accept; `data` begins with the same byte, of which the bit of
 * a dead writer counts. */
void page_change(const uint8_t *data, size_t size);

/* What the owner answers to the next setting. */
void owner_answers(const uint8_t *data, size_t size);

#endif
