/* A folder with a page or two, as hostile as an input makes them, and an owner that answers settings. */
#ifndef SIMGPU_FUZZ_PAGES_H
#define SIMGPU_FUZZ_PAGES_H

#include <stddef.h>
#include <stdint.h>

/* Make the folder and start the owner, once. */
void pages_prepare(void);

/* Write the page: `data` as it is if it begins with an odd byte, else with a head that readers accept. With the byte's
 * second bit there is another page, which begins like the first one. */
void page_put(const uint8_t *data, size_t size);

/* The page of a card that was described by the project itself, for inputs that are no page. */
void page_put_valid(void);

/* Write over the page while it is read, with a head that readers accept. */
void page_change(const uint8_t *data, size_t size);

/* What the owner answers to the next setting. */
void owner_answers(const uint8_t *data, size_t size);

#endif
