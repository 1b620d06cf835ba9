/* The probe's kernels. Words are 8 bytes; a thread handles two at a time. bodies.c has the same for simulated devices. */
#include <cstdint>

typedef unsigned long long word;

static __device__ word word_of(word seed, word index) {
    word x = (index + seed) * 0x9e3779b97f4a7c15ull;
    return x ^ x >> 29;
}

static __device__ word timer() {
    word ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

static __device__ void spin(word ns) {
    word begin = timer();
    while (timer() - begin < ns)
        continue;
}

#define EACH_PAIR(i, words)                                                                                  \
    for (word i = (word)blockIdx.x * blockDim.x + threadIdx.x; i < (words) / 2;                              \
         i += (word)gridDim.x * blockDim.x)

extern "C" __global__ void probe_fill(word *to, word words, word seed, word keep, word set) {
    EACH_PAIR(i, words)
    ((ulonglong2 *)to)[i] =
        make_ulonglong2((word_of(seed, 2 * i) & keep) | set, (word_of(seed, 2 * i + 1) & keep) | set);
}

extern "C" __global__ void probe_wrong(const word *from, word words, word seed, word *wrong) {
    word found = 0;
    EACH_PAIR(i, words) {
        ulonglong2 pair = ((const ulonglong2 *)from)[i];
        found += (pair.x != word_of(seed, 2 * i)) + (pair.y != word_of(seed, 2 * i + 1));
    }
    if (found)
        atomicAdd(wrong, found);
}

extern "C" __global__ void probe_sum(const word *from, word words, word *out) {
    word sum = 0;
    EACH_PAIR(i, words) {
        ulonglong2 pair = ((const ulonglong2 *)from)[i];
        sum += pair.x ^ pair.y;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" __global__ void probe_spin(word ns) {
    spin(ns);
}

extern "C" __global__ void probe_spin_write(word ns, word *to) {
    spin(ns);
    *(volatile word *)to = ns;
}
