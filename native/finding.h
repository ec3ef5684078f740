/* Where pages are: the node's own folder, that of a driver folder, or files that a container runtime brought along. */
#ifndef SIMGPU_FINDING_H
#define SIMGPU_FINDING_H

#include "reader.h"

enum { LONGEST_PATH = 4096 };

/* Pages are in `<folder>/<name>/page`; those that were brought along as firmware are files `<folder>/gsp_simgpu-<id>.bin`. */
struct place { char folder[LONGEST_PATH]; int is_firmware; };

/* The folder in SIMGPU_PAGES; else the first there is of: that of the driver folder which this code is in,
 * /var/lib/simgpu/gpus, and the firmware of a driver. One that cannot be opened is the answer's, too. */
void pages_find(struct place *into);

/* The path of an entry's page; 0 if it is none. */
int page_path(const struct place *place, const char *entry, char *into, size_t size);

/* A container has device files of the cards, and of their GPU and compute instances, that it may use; processes on others are
 * not its own. */
int has_device_file(const struct page *page);
void keep_own_instances(struct page *page);

#endif
