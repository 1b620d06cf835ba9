/* plugins.def, as data. */
#ifndef CASTOR_JOB_PLUGIN_H
#define CASTOR_JOB_PLUGIN_H

#include "options.h"

typedef struct plugin_info {
    const char *name;
    int engine; /* what the agent does with models (plugins.def) */
    int shards; /* the number of kinds that only one node keeps: optimizer states, gradients, parameters */
} plugin_info;

extern const plugin_info plugin_table[CASTOR_PLUGIN_COUNT];

/* The plugin of this process. */
const plugin_info *plugin(void);

#endif
