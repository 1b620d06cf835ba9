/* Tensors that cuDNN reads and writes, by their effect: a weight with its home on the host is read from a slot where a plan only reads
 * it, and after everything that may have written it the next call reads what was written. cuDNN is fake_dnn.c, which tells what
 * pointers it got. */
#include "operands.h"

#include "fake_dnn.h"

static cudnnHandle_t dnn;

static bool prepare_dnn(void) {
    if (!prepare())
        return false;
    CUDA(cudnnCreate(&dnn));
    CUDA(cudnnSetStream(dnn, stream));
    fake_dnn.tensor_bytes = BYTES;
    return true;
}

/* ---- making plans, as PyTorch does: what a descriptor is made of ends before it ---- */

typedef cudnnBackendDescriptor_t descriptor;

static descriptor make(cudnnBackendDescriptorType_t type) {
    descriptor made = NULL;
    return cudnnBackendCreateDescriptor(type, &made) ? NULL : made;
}
static int set(descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               int64_t count, const void *elements) {
    return cudnnBackendSetAttribute(d, name, type, count, elements);
}
static int set_part(descriptor d, cudnnBackendAttributeName_t name, descriptor part) {
    int status = set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
    return status ? status : (int)cudnnBackendDestroyDescriptor(part);
}

static int64_t columns = N, vectors = 1; /* of the next tensors */

static descriptor tensor(int64_t id) {
    descriptor d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    int64_t sizes[] = {1, columns, N}, strides[] = {columns * N, N, 1}, alignment = 16;
    bool bad = set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type) |
               set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 3, sizes) |
               set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 3, strides) |
               set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id) |
               set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment) |
               (vectors > 1 && set(d, CUDNN_ATTR_TENSOR_VECTOR_COUNT, CUDNN_TYPE_INT64, 1, &vectors)) |
               cudnnBackendFinalize(d);
    return bad ? NULL : d;
}

typedef enum { FORWARD, DATA, FILTER, POINTWISE } kind;

/* Of three tensors: 'x', 'w', 'y' where nothing else is said. Two are read, the last one is written. */
static descriptor operation(kind k, const char *ids) {
    static const struct {
        cudnnBackendDescriptorType_t type;
        cudnnBackendAttributeName_t tensors[3];
    } kinds[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
         {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y}},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX}},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW}},
        {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
         {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
          CUDNN_ATTR_OPERATION_POINTWISE_YDESC}},
    };
    descriptor d = make(kinds[k].type);
    if (k != POINTWISE && set_part(d, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                   make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)))
        return NULL;
    for (int i = 0; i < 3; i++)
        if (set_part(d, kinds[k].tensors[i], tensor(ids[i])))
            return NULL;
    return d;
}

static descriptor graph(int count, descriptor *operations) {
    descriptor d = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (set(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, operations))
        return NULL;
    for (int i = 0; i < count; i++)
        cudnnBackendDestroyDescriptor(operations[i]);
    return d;
}

static descriptor configuration_of(descriptor engine) {
    descriptor d = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    return set_part(d, CUDNN_ATTR_ENGINECFG_ENGINE, engine) ? NULL : d;
}
static descriptor by_engine(descriptor of) {
    descriptor engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    return set_part(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, of) ? NULL : configuration_of(engine);
}
/* The second of two results, though three were asked for. */
static descriptor by_heuristics(descriptor of) {
    descriptor heuristics = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), results[3];
    int64_t count = 0;
    for (int i = 0; i < 3; i++)
        results[i] = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (set_part(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, of) ||
        cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 3,
                                 &count, results))
        return NULL;
    cudnnBackendDestroyDescriptor(heuristics);
    cudnnBackendDestroyDescriptor(results[0]);
    cudnnBackendDestroyDescriptor(results[2]);
    return results[1];
}
/* A configuration of the engine that a configuration has. */
static descriptor by_its_engine(descriptor of) {
    descriptor first = by_heuristics(of), engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t count = 0;
    if (cudnnBackendGetAttribute(first, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                 &engine))
        return NULL;
    cudnnBackendDestroyDescriptor(first);
    return configuration_of(engine);
}

static descriptor plan_of(descriptor configuration) {
    descriptor d = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    return set_part(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration) ? NULL : d;
}
static descriptor plan(kind k, const char *ids) {
    descriptor one = operation(k, ids);
    return plan_of(by_engine(graph(1, &one)));
}

static bool no_more_packs; /* cuDNN makes none but the test's */

/* Executes on pointers with the ids of a text, and leaves the plan. */
static bool execute_on(descriptor with, const char *ids, void *const *pointers) {
    descriptor pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    int64_t numbers[FAKE_POINTERS], count = (int64_t)strlen(ids);
    void *workspace = Y + N * N;
    for (int64_t i = 0; i < count; i++)
        numbers[i] = ids[i];
    CHECK(with);
    CUDA(set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers));
    CUDA(set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, numbers));
    CUDA(set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
    CUDA(cudnnBackendFinalize(pack));
    fake_dnn.fail_finalize = no_more_packs;
    int descriptors = fake_dnn.descriptors;
    CUDA(cudnnBackendExecute(dnn, with, pack));
    CHECK(fake_dnn.descriptors == descriptors && fake_dnn.workspace == workspace);
    CHECK(fake_dnn.count == count);
    for (int64_t i = 0; i < count; i++)
        CHECK(fake_dnn.ids[i] == ids[i]);
    fake_dnn.fail_finalize = 0;
    CUDA(cudnnBackendDestroyDescriptor(pack));
    return true;
}

/* ---- what a call does with W, the operand at `number` of the pointers that the fake tells ---- */

/* The call read the bytes that W holds; where it is, or in a slot. */
static bool saw(int number, bool elsewhere) {
    static float now[N * N];
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(now, W, BYTES, cudaMemcpyDeviceToHost));
    CHECK(elsewhere == (fake_dnn.pointers[number] != W));
    CHECK(memcmp(fake_dnn.seen[number], now, BYTES) == 0);
    memset(fake_dnn.seen[number], 0, BYTES);
    return true;
}

static bool restore(void) {
    fake_dnn.writes = -1;
    memset(fake_dnn.reads, 0, sizeof fake_dnn.reads);
    CUDA(cudaMemcpy(W, host, BYTES, cudaMemcpyHostToDevice));
    return true;
}

/* A call that reads W from its slot, time and again, and the new bytes after a writer. It is in nobody's way. */
static bool reads(bool (*call)(void), int number) {
    if (!product())
        return false;
    fake_dnn.reads[number] = true;
    for (int round = 0; round < 3; round++) {
        castor_homes before = counted();
        if (!call() || !saw(number, true))
            return false;
        castor_homes after = counted();
        CHECK(after.uses == before.uses + 1 && after.hits == before.hits + (round != 2));
        CHECK(after.stale == before.stale);
        if (round == 1)
            CUDA(cudaMemcpyAsync(W, X, BYTES, cudaMemcpyDefault, stream));
    }
    return restore();
}

/* A call that may write W: it gets W itself, and the product after it reads what it wrote, though nobody saw how. */
static bool writes(bool (*call)(void), int number, bool all) {
    CUDA(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, other, N, X, N, &zero, Y, N));
    if (!product() || !product_by_slot(false))
        return false;
    castor_homes before = counted();
    fake_dnn.writes = number;
    if (!call())
        return false;
    castor_homes after = counted();
    CHECK(fake_dnn.pointers[number] == W);
    CHECK(after.uses == before.uses && after.stale == before.stale + 1 + all);
    fake_dnn.writes = -1;
    return product_by_slot(true) && restore();
}

/* ---- the backend ---- */

static descriptor current;
static const char *current_ids;
static void *current_pointers[FAKE_POINTERS];
static bool execute(void) {
    return execute_on(current, current_ids, current_pointers);
}
static bool reads_in(descriptor of, const char *ids) {
    current = of;
    current_ids = ids;
    current_pointers[0] = X, current_pointers[1] = W, current_pointers[2] = Y;
    bool well = reads(execute, 1);
    cudnnBackendDestroyDescriptor(of);
    return well;
}
static bool writes_in(descriptor of, const char *ids) {
    current = of;
    current_ids = ids;
    current_pointers[0] = X, current_pointers[1] = W, current_pointers[2] = Y;
    bool well = writes(execute, 1, true);
    cudnnBackendDestroyDescriptor(of);
    return well;
}

static bool forward(void) {
    return reads_in(plan(FORWARD, "xwy"), "xwy");
}
static bool backward_data(void) {
    return reads_in(plan(DATA, "xwy"), "xwy");
}
static bool backward_filter(void) {
    return reads_in(plan(FILTER, "xwy"), "xwy") && writes_in(plan(FILTER, "xyw"), "xwy");
}
static bool outputs(void) {
    return writes_in(plan(FORWARD, "xyw"), "xwy") && writes_in(plan(DATA, "xyw"), "xwy");
}
static bool heuristics(void) {
    descriptor one = operation(FORWARD, "xwy"), same = operation(FORWARD, "xwy");
    return reads_in(plan_of(by_heuristics(graph(1, &one))), "xwy") &&
           reads_in(plan_of(by_its_engine(graph(1, &same))), "xwy");
}
/* The operations of one graph, of which one may write what the other reads. */
static bool graphs(void) {
    descriptor both[] = {operation(FORWARD, "xwv"), operation(POINTWISE, "vby")};
    descriptor rest[] = {operation(FORWARD, "xwv"), operation(POINTWISE, "vbw")};
    return reads_in(plan_of(by_engine(graph(2, both))), "xwy") &&
           writes_in(plan_of(by_engine(graph(2, rest))), "xwy");
}
/* An id that no operation has. */
static bool ids(void) {
    return writes_in(plan(FORWARD, "xwy"), "xay");
}
/* Plans that nobody saw being made, or whose parts nobody knows. */
static bool unknown(void) {
    descriptor of = plan(FORWARD, "xwy"), one = operation(FORWARD, "xwy"), unseen, tensor_without = NULL;
    CUDA(set(of, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 2, "{}"));
    if (!writes_in(of, "xwy"))
        return false;
    /* Its parts are not followed by the real function alone. */
    __typeof__(cudnnBackendCreateDescriptor) *real =
        dlsym(dlopen("libcudnn.so.9", RTLD_NOLOAD | RTLD_NOW), "cudnnBackendCreateDescriptor");
    CHECK(real);
    CUDA(real(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &unseen));
    CUDA(set(unseen, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one));
    if (!writes_in(plan_of(by_engine(unseen)), "xwy"))
        return false;
    /* A tensor without an id could be any. */
    descriptor lost = operation(POINTWISE, "vby");
    tensor_without = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    CUDA(set_part(lost, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensor_without));
    descriptor both[] = {one, lost};
    return writes_in(plan_of(by_engine(graph(2, both))), "xwy");
}
/* A plan at the address of one that has ended. */
static bool addresses(void) {
    descriptor first = plan(FORWARD, "xwy");
    if (!reads_in(first, "xwy"))
        return false;
    descriptor second = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    CHECK(second == first);
    if (!writes_in(second, "xwy"))
        return false;
    __typeof__(cudnnBackendDestroyDescriptor) *end =
        dlsym(dlopen("libcudnn.so.9", RTLD_NOLOAD | RTLD_NOW), "cudnnBackendDestroyDescriptor");
    first = plan(FORWARD, "xwy");
    CUDA(end(first)); /* unseen */
    second = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    CHECK(second == first);
    return writes_in(second, "xwy");
}
/* The pointer of what is written lies in what is read. */
static bool in_place(void) {
    castor_homes before;
    current = plan(FORWARD, "xwy");
    current_ids = "xwy";
    current_pointers[0] = X, current_pointers[1] = W, current_pointers[2] = W + 64;
    if (!product())
        return false;
    before = counted();
    fake_dnn.writes = 2;
    fake_dnn.reads[1] = true;
    CUDA(!execute());
    CHECK(fake_dnn.pointers[1] == W && counted().uses == before.uses && counted().stale > before.stale);
    fake_dnn.writes = -1;
    CUDA(cudnnBackendDestroyDescriptor(current));
    return product_by_slot(true) && restore();
}
/* Tensors that are longer than the parameter, or lie nobody knows how. */
static bool extents(void) {
    castor_homes before = counted();
    columns = N + 1;
    current = plan(FORWARD, "xwy");
    columns = N;
    current_ids = "xwy";
    current_pointers[0] = X, current_pointers[1] = W, current_pointers[2] = Y;
    fake_dnn.reads[1] = true;
    CHECK(execute() && saw(1, false) && counted().uses == before.uses);
    CUDA(cudnnBackendDestroyDescriptor(current));

    vectors = 4;
    current = plan(FORWARD, "xwy");
    vectors = 1;
    CHECK(execute() && saw(1, false) && counted().uses == before.uses);
    CUDA(cudnnBackendDestroyDescriptor(current));
    return restore();
}
/* More pointers than are followed: they may be anybody's. */
static bool many_pointers(void) {
    for (int i = 0; i < FAKE_POINTERS; i++)
        current_pointers[i] = X;
    current = plan(FORWARD, "xwy");
    current_ids = "xwyabcdefghijk";
    current_pointers[1] = W;
    bool well = writes(execute, 1, true);
    CUDA(cudnnBackendDestroyDescriptor(current));
    return well;
}
/* More operands than are followed. */
static bool many_operands(void) {
    descriptor all[6];
    for (int i = 0; i < 6; i++) {
        char names[] = {(char)('A' + 3 * i), (char)('B' + 3 * i), (char)('C' + 3 * i), 0};
        all[i] = operation(POINTWISE, i ? names : "xwy");
    }
    return writes_in(plan_of(by_engine(graph(6, all))), "xwy");
}
/* cuDNN makes no second variant pack: the script's is taken, and W is read where it is. */
static bool no_pack(void) {
    current = plan(FORWARD, "xwy");
    current_ids = "xwy";
    current_pointers[0] = X, current_pointers[1] = W, current_pointers[2] = Y;
    no_more_packs = true;
    fake_dnn.reads[1] = true;
    bool well = execute() && saw(1, false);
    no_more_packs = false;
    CUDA(cudnnBackendDestroyDescriptor(current));
    return well && restore() && forward();
}
/* So many descriptors that some find no place: what is made of them is unknown, variant packs too. */
static bool many_descriptors(void) {
    static descriptor all[40000];
    descriptor before = plan(FORWARD, "xwy");
    for (int i = 0; i < 40000; i++)
        all[i] = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    if (!writes_in(plan(FORWARD, "xwy"), "xwy"))
        return false;
    for (int i = 0; i < 40000; i++)
        cudnnBackendDestroyDescriptor(all[i]);
    return reads_in(before, "xwy") && forward();
}

/* ---- calls with pointers ---- */

static cudnnTensorDescriptor_t T = (cudnnTensorDescriptor_t)&one;
static cudnnFilterDescriptor_t F = (cudnnFilterDescriptor_t)&one;
static float *at[7]; /* their pointers, in the order in which the fake tells them */

static bool call_forward(void) {
    CUDA(cudnnConvolutionForward(dnn, &one, T, at[0], F, at[1], NULL, 0, NULL, 0, &zero, T, at[2]));
    return true;
}
static bool call_data(void) {
    CUDA(cudnnConvolutionBackwardData(dnn, &one, F, at[0], T, at[1], NULL, 0, NULL, 0, &zero, T, at[2]));
    return true;
}
static bool call_filter(void) {
    CUDA(cudnnConvolutionBackwardFilter(dnn, &one, T, at[0], T, at[1], NULL, 0, NULL, 0, &zero, F, at[2]));
    return true;
}
static bool call_bias(void) {
    CUDA(cudnnConvolutionBiasActivationForward(dnn, &one, T, at[0], F, at[1], NULL, 0, NULL, 0, &one, T,
                                               at[2], T, at[3], NULL, T, at[4]));
    return true;
}
static bool call_rnn(void) {
    CUDA(cudnnRNNForward(dnn, NULL, CUDNN_FWD_MODE_TRAINING, NULL, NULL, at[0], NULL, at[1], NULL, at[2],
                         at[3], NULL, at[4], at[5], BYTES, at[6], 0, NULL, 0, NULL));
    return true;
}
static bool call_rnn_data(void) {
    CUDA(cudnnRNNBackwardData_v8(dnn, NULL, NULL, NULL, X, X, NULL, at[0], NULL, X, X, at[1], NULL, X, X,
                                 at[2], BYTES, at[3], 0, NULL, 0, NULL));
    return true;
}
static bool call_rnn_weights(void) {
    CUDA(cudnnRNNBackwardWeights_v8(dnn, NULL, CUDNN_WGRAD_MODE_ADD, NULL, NULL, at[0], NULL, at[1], NULL,
                                    at[2], BYTES, at[3], 0, NULL, 0, NULL));
    return true;
}

/* Of each pointer: read from a slot, written, or neither, where a launch would be noted. */
static bool every_call(void) {
    static const struct {
        bool (*call)(void);
        const char *operands;
    } calls[] = {{call_forward, "rrw"},     {call_data, "rrw"},    {call_filter, "rrw"},
                 {call_bias, "rrrrw"},      {call_rnn, "-w-w-wr"}, {call_rnn_data, "wwwr"},
                 {call_rnn_weights, "---W"}};
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        for (int i = 0; calls[c].operands[i]; i++) {
            char how = calls[c].operands[i];
            for (int k = 0; k < 7; k++)
                at[k] = k == i ? W : X;
            if (how == 'r' && !reads(calls[c].call, i))
                return false;
            if ((how | 32) == 'w' && !writes(calls[c].call, i, how == 'w'))
                return false;
        }
    return true;
}
/* An addend that is the output as well is where it is; and so is a filter whose size is unknown. */
static bool at_home(void) {
    castor_homes before = counted();
    for (int k = 0; k < 7; k++)
        at[k] = X;
    at[2] = at[4] = W;
    CHECK(product() && call_bias() && fake_dnn.pointers[2] == W && fake_dnn.pointers[4] == W);
    CHECK(counted().uses == before.uses + 1);
    at[1] = W, at[2] = at[4] = X;
    fake_dnn.tensor_bytes = 0;
    CHECK(call_forward() && fake_dnn.pointers[1] == W && counted().uses == before.uses + 1);
    at[0] = W, at[1] = X;
    CHECK(call_forward() && fake_dnn.pointers[0] == W && counted().uses == before.uses + 1);
    at[0] = X, at[1] = W;
    fake_dnn.tensor_bytes = BYTES + 4;
    CHECK(call_forward() && fake_dnn.pointers[1] == W && counted().uses == before.uses + 1);
    fake_dnn.tensor_bytes = BYTES;
    return true;
}

static const named_test tests[] = {
    {"forward", forward},
    {"backward_data", backward_data},
    {"backward_filter", backward_filter},
    {"outputs", outputs},
    {"heuristics", heuristics},
    {"graphs", graphs},
    {"ids", ids},
    {"unknown", unknown},
    {"addresses", addresses},
    {"in_place", in_place},
    {"extents", extents},
    {"many_pointers", many_pointers},
    {"many_operands", many_operands},
    {"no_pack", no_pack},
    {"many_descriptors", many_descriptors},
    {"every_call", every_call},
    {"at_home", at_home},
};

int main(int count, char **names) {
    int failed = check_run("prepare", prepare_dnn);
    return failed || tests_run(count, names, tests, sizeof tests / sizeof *tests);
}
