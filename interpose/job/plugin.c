#include "plugin.h"

const plugin_info plugin_table[CASTOR_PLUGIN_COUNT] = {
#define PLUGIN(id, name_, engine_, shards_, doc)                                                             \
    [CASTOR_PLUGIN_##id] = {.name = name_, .engine = engine_, .shards = shards_},
#include "plugins.def"
};

const plugin_info *plugin(void) {
    return &plugin_table[options()->plugin];
}
