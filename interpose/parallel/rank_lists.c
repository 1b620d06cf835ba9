#include "rank_lists.h"

#include "base/error.h"

enum { WORD_BITS = 64 };

castor_status rank_list_sort(const int32_t *ranks, int32_t count, int32_t *sorted) {
    uint64_t present[RANKS_MOST / WORD_BITS] = {0};
    if (count < 1)
        return error_set(CASTOR_ERR_ARGUMENT, "a list of %d ranks: expected 1 or more", count);
    for (int32_t i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= RANKS_MOST)
            return error_set(CASTOR_ERR_ARGUMENT, "rank %d in a list of ranks: expected 0 to %d", ranks[i],
                             RANKS_MOST - 1);
        uint64_t bit = 1ull << ranks[i] % WORD_BITS;
        if (present[ranks[i] / WORD_BITS] & bit)
            return error_set(CASTOR_ERR_ARGUMENT, "rank %d is twice in a list of ranks: name each once",
                             ranks[i]);
        present[ranks[i] / WORD_BITS] |= bit;
    }
    if (!sorted)
        return CASTOR_OK;
    int32_t placed = 0;
    for (int32_t word = 0; word < RANKS_MOST / WORD_BITS; word++)
        for (uint64_t rest = present[word]; rest; rest &= rest - 1)
            sorted[placed++] = word * WORD_BITS + __builtin_ctzll(rest);
    return CASTOR_OK;
}

castor_status rank_list_degrees(int32_t size, int32_t *tp, int32_t *dp) {
    if (size < 1 || *tp < 0 || *dp < 0)
        return error_set(
            CASTOR_ERR_ARGUMENT,
            "tensor-parallel degree %d and data-parallel degree %d of %d ranks: expected 1 or more", *tp, *dp,
            size);
    int32_t tensor = *tp ? *tp : *dp ? size / *dp : 1;
    int32_t data = *dp ? *dp : size / tensor;
    if ((int64_t)tensor * data != size)
        return error_set(
            CASTOR_ERR_ARGUMENT,
            "tensor-parallel degree %d times data-parallel degree %d is not %d, the number of ranks", tensor,
            data, size);
    *tp = tensor;
    *dp = data;
    return CASTOR_OK;
}

castor_status rank_list_get(rank_list_kind kind, const int32_t *ranks, int32_t tp, int32_t dp, int32_t index,
                            int32_t *out) {
    if (kind != RANK_LIST_TENSOR && kind != RANK_LIST_DATA)
        return error_set(CASTOR_ERR_ARGUMENT, "kind %d of a rank list: expected 0 (tensor) or 1 (data)",
                         (int)kind);
    bool is_tensor = kind == RANK_LIST_TENSOR;
    int32_t lists = is_tensor ? dp : tp, length = is_tensor ? tp : dp;
    if (index < 0 || index >= lists)
        return error_set(CASTOR_ERR_ARGUMENT, "%s list %d of %d", is_tensor ? "tensor" : "data", index,
                         lists);
    for (int32_t i = 0; i < length; i++)
        out[i] = is_tensor ? ranks[index * tp + i] : ranks[i * tp + index];
    return CASTOR_OK;
}
