/* The exported functions about Gemini: thin, over the modules. */
#include "castor.h"

#include "placement/chunk_search.h"

_Static_assert(sizeof(castor_chunk_list) == sizeof(chunk_search_list) &&
                   offsetof(castor_chunk_list, keep_gathered) == offsetof(chunk_search_list, keep_gathered),
               "one layout, two names");
_Static_assert(sizeof(castor_chunk_range) == sizeof(chunk_search_range) &&
                   offsetof(castor_chunk_range, filter) == offsetof(chunk_search_range, filter),
               "one layout, two names");

castor_status castor_chunk_search(castor_chunk_list *lists, uint32_t count, const castor_chunk_range *range,
                                  uint64_t *numel, uint64_t *wasted) {
    chunk_search_result found;
    castor_status status =
        chunk_search((chunk_search_list *)lists, count, (const chunk_search_range *)range, &found);
    *numel = found.numel;
    *wasted = found.wasted;
    return status;
}
