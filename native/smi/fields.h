/* The columns of the --query-... options. */
#ifndef SIMGPU_FIELDS_H
#define SIMGPU_FIELDS_H

#include "values.h"

struct field { const char *name, *alias, *unit; struct value value; const char *about; };

extern const struct field GPU_FIELDS[];
extern const unsigned GPU_FIELD_COUNT;

#endif
