#include "anycall.h"
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/log.h"
#include "events/life.h"
#include "job/options.h"
#include "job/signature.h"
#include "shims/ffi/ffi.h"
#include "trace/counters.h"
#include "objects.h"
#include "wrapper.h"

/* Callers' entries of a function: the words of a loaded object, filled by the dynamic linker, that hold the address of a function of
 * another object: entries of its GOT, and pointers in its data. */

/* A function and its replacement for callers. */
typedef struct got_change {
    const char *name; /* as callers import it */
    void *from, *to;
    unsigned written; /* entries that got_rewrite has changed */
} got_change;

#if defined(__x86_64__)
#define RELOCATION_JUMP R_X86_64_JUMP_SLOT
#define RELOCATION_DATA R_X86_64_GLOB_DAT
#define RELOCATION_WORD R_X86_64_64
#elif defined(__aarch64__)
#define RELOCATION_JUMP R_AARCH64_JUMP_SLOT
#define RELOCATION_DATA R_AARCH64_GLOB_DAT
#define RELOCATION_WORD R_AARCH64_ABS64
#endif

typedef struct got_query {
    got_change *changes;
    unsigned count;
    uintptr_t page_size;
    const void *but;
} got_query;

/* The linker makes the relocated pages that lie wholly in this range read-only. */
static bool is_read_only(const object_tables *object, uintptr_t address, uintptr_t page_size) {
    return address >= (object->relro_begin & -page_size) && address < (object->relro_end & -page_size);
}

static bool holds(const object_tables *object, const void *address) {
    return (uintptr_t)address - object->begin < object->end - object->begin;
}

static const Elf64_Sym *symbol_of(const object_tables *object, const Elf64_Rela *rela) {
    return &object->symbols[ELF64_R_SYM(rela->r_info)];
}

/* In a program at a fixed address, a function's address is that of the program's own jump to it. Look-ups find this jump, the linker
 * does not bind entries to it. */
static int program_jump_visit(struct dl_phdr_info *info, size_t size, void *context) {
    got_change *jump = context;
    object_tables object;
    (void)size;
    if (!objects_read(info, &object) || !holds(&object, jump->from))
        return 0;
    for (size_t i = 0; i < object.rela_count[1] && !jump->written; i++) {
        const Elf64_Sym *symbol = symbol_of(&object, &object.rela[1][i]);
        jump->written = symbol->st_shndx == SHN_UNDEF &&
                        (void *)(object.base + symbol->st_value) == jump->from &&
                        strcmp(object.strings + symbol->st_name, jump->name) == 0;
    }
    return 1;
}

static bool is_program_jump(const char *name, void *address) {
    got_change jump = {.name = name, .from = address};
    if (address)
        dl_iterate_phdr(program_jump_visit, &jump);
    return jump.written != 0;
}

/* An entry that is not bound yet leads back into its own object. What will it be bound to? */
static bool will_lead_to(const struct dl_phdr_info *info, const got_change *change) {
    void *found = loader_symbol(RTLD_DEFAULT, change->name);
    if (is_program_jump(change->name, found))
        found = loader_symbol(RTLD_NEXT, change->name);
    if (!found && info->dlpi_name[0]) {
        void *object = loader_open(info->dlpi_name);
        found = object ? loader_symbol(object, change->name) : NULL;
        if (object)
            loader_close(object);
    }
    return found == change->from;
}

static bool entry_write(const object_tables *object, void **entry, void *value, uintptr_t page_size) {
    void *page = (void *)((uintptr_t)entry & -page_size);
    bool read_only = is_read_only(object, (uintptr_t)entry, page_size);
    if (read_only && mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0)
        return false;
    __atomic_store_n(entry, value, __ATOMIC_RELEASE);
    if (read_only)
        mprotect(page, page_size, PROT_READ);
    return true;
}

static int object_rewrite(struct dl_phdr_info *info, size_t size, void *context) {
    got_query *query = context;
    object_tables object;
    (void)size;
    if (!objects_read(info, &object) || holds(&object, (void *)object_rewrite) ||
        (query->but && holds(&object, query->but)))
        return 0;
    for (int table = 0; table < 2; table++) {
        for (size_t i = 0; i < object.rela_count[table]; i++) {
            const Elf64_Rela *rela = &object.rela[table][i];
            uint32_t type = ELF64_R_TYPE(rela->r_info);
            if (type != RELOCATION_JUMP && type != RELOCATION_DATA &&
                (type != RELOCATION_WORD || rela->r_addend != 0))
                continue;
            const char *name = object.strings + symbol_of(&object, rela)->st_name;
            for (unsigned c = 0; c < query->count; c++) {
                got_change *change = &query->changes[c];
                if (strcmp(name, change->name) != 0)
                    continue;
                void **entry = (void **)(object.base + rela->r_offset),
                     *now = __atomic_load_n(entry, __ATOMIC_ACQUIRE);
                bool unbound = type == RELOCATION_JUMP && holds(&object, now) && now != change->from;
                if ((now == change->from || (unbound && will_lead_to(info, change))) &&
                    entry_write(&object, entry, change->to, query->page_size))
                    change->written++;
            }
        }
    }
    return 0;
}

/* Makes the changes in every loaded object but this library and the one that `but` lies in (NULL: none): entries that lead to `from`,
 * or will once they are bound, lead to `to` afterwards. Pages that are read-only stay so. */
static void got_rewrite(got_change *changes, unsigned count, const void *but) {
    got_query query = {
        .changes = changes, .count = count, .page_size = (uintptr_t)sysconf(_SC_PAGESIZE), .but = but};
    dl_iterate_phdr(object_rewrite, &query);
}

#define FFI_LIBRARY "libffi.so"

typedef struct traced {
    ffi_cif cif;
    signature signature;
    bool failed;
    trace_also_state state;
    char name[2 * SIGNATURE_NAME_MAX];
    void (*real)(void); /* atomic; NULL: its library is not loaded */
    void *closure;      /* what callers reach instead; set before `real` */
    ffi_type structs[SIGNATURE_TYPES_MAX];
    ffi_type *elements[2 * SIGNATURE_TYPES_MAX]; /* of all structs, each ended by NULL */
    ffi_type *parameters[SIGNATURE_TYPES_MAX];
} traced;

static traced functions[SIGNATURE_FUNCTIONS_MAX];
static unsigned function_count;  /* atomic: set once they are read */
static uint64_t seen_generation; /* lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    bool tried, found;
    ffi_prep_cif_function *prep_cif;
    ffi_call_function *call;
    ffi_closure_alloc_function *closure_alloc;
    ffi_prep_closure_loc_function *prep_closure;
} ffi;

static bool ffi_find(void) {
    static const char *const names[] = {"libffi.so.8", "libffi.so.7", "libffi.so.6"};
    if (ffi.tried)
        return ffi.found;
    ffi.tried = true;
    void *library = loader_library(FFI_LIBRARY);
    for (unsigned i = 0; !library && i < sizeof names / sizeof *names; i++)
        library = loader_load(names[i]);
    if (library) {
        ffi.prep_cif = (ffi_prep_cif_function *)loader_symbol(library, "ffi_prep_cif");
        ffi.call = (ffi_call_function *)loader_symbol(library, "ffi_call");
        ffi.closure_alloc = (ffi_closure_alloc_function *)loader_symbol(library, "ffi_closure_alloc");
        ffi.prep_closure = (ffi_prep_closure_loc_function *)loader_symbol(library, "ffi_prep_closure_loc");
    }
    ffi.found = ffi.prep_cif && ffi.call && ffi.closure_alloc && ffi.prep_closure;
    if (!ffi.found)
        LOG_W("CASTOR_TRACE_ALSO needs libffi, which is not here: install the package libffi8 (or libffi); "
              "nothing "
              "of it is recorded");
    return ffi.found;
}

/* The type of libffi for a letter: exported variables of the library. */
static ffi_type *scalar_type(char code) {
    static const struct {
        char code;
        const char *name;
    } names[] = {{'v', "ffi_type_void"},   {'b', "ffi_type_sint8"},  {'B', "ffi_type_uint8"},
                 {'s', "ffi_type_sint16"}, {'S', "ffi_type_uint16"}, {'i', "ffi_type_sint32"},
                 {'I', "ffi_type_uint32"}, {'l', "ffi_type_sint64"}, {'L', "ffi_type_uint64"},
                 {'f', "ffi_type_float"},  {'d', "ffi_type_double"}, {'p', "ffi_type_pointer"}};
    void *library = loader_library(FFI_LIBRARY);
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code)
            return loader_symbol(library, names[i].name);
    return NULL;
}

/* The libffi type of the signature's type at `index`; members of structs are taken from `elements` on. */
static ffi_type *type_of(traced *function, unsigned index, unsigned *elements_used) {
    const signature_type *type = &function->signature.types[index];
    if (type->code != '{')
        return scalar_type(type->code);
    ffi_type *made = &function->structs[index];
    unsigned members = 0;
    for (unsigned i = index + 1; i < index + type->span; i += function->signature.types[i].span)
        members++;
    ffi_type **elements = &function->elements[*elements_used];
    *elements_used += members + 1;
    *made = (ffi_type){.type = FFI_TYPE_STRUCT, .elements = elements};
    for (unsigned i = index + 1, member = 0; member < members; i += function->signature.types[i].span)
        elements[member++] = type_of(function, i, elements_used);
    elements[members] = NULL;
    return made;
}

/* An integer or pointer as a number; other types as 0. */
static uint64_t number_of(char code, const void *value) {
    uint64_t number = 0;
    switch (code) {
    case 'b':
        return (uint64_t)(int64_t) * (const int8_t *)value;
    case 's':
        return (uint64_t)(int64_t) * (const int16_t *)value;
    case 'i':
        return (uint64_t)(int64_t) * (const int32_t *)value;
    case 'B':
        memcpy(&number, value, 1);
        return number;
    case 'S':
        memcpy(&number, value, 2);
        return number;
    case 'I':
        memcpy(&number, value, 4);
        return number;
    case 'l':
    case 'L':
    case 'p':
        memcpy(&number, value, 8);
        return number;
    default:
        return 0;
    }
}

/* What a caller reaches: calls the real function with the arguments as they came. libffi wants the room of a whole
 * word for an integer result, and gives one. */
static void closure_run(ffi_cif *cif, void *result, void **arguments, void *data) {
    const traced *function = data;
    const signature *signature = &function->signature;
    void (*real)(void) = __atomic_load_n(&function->real, __ATOMIC_ACQUIRE);
    uint64_t begin_ns = trace_now_ns(), first[2] = {0};
    for (unsigned i = 0, at = signature->types[0].span; i < signature->parameter_count && i < 2; i++) {
        first[i] = number_of(signature->types[at].code, arguments[i]);
        at += signature->types[at].span;
    }
    ffi.call(cif, real, result, arguments);
    trace_record_write(TRACE_CALL, (uint32_t)(HOOK_COUNT + (function - functions)), begin_ns, trace_now_ns(),
                       0, first[0], first[1], number_of(signature->types[0].code, result));
}

static bool closure_make(traced *function) {
    const signature *signature = &function->signature;
    unsigned elements_used = 0, at = signature->types[0].span;
    ffi_type *result = type_of(function, 0, &elements_used);
    for (unsigned i = 0; i < signature->parameter_count; i++) {
        function->parameters[i] = type_of(function, at, &elements_used);
        at += signature->types[at].span;
    }
    void *code = NULL, *closure = ffi.closure_alloc(FFI_CLOSURE_SIZE, &code);
    if (!closure ||
        ffi.prep_cif(&function->cif, FFI_DEFAULT_ABI, signature->parameter_count, result,
                     function->parameters) != FFI_OK ||
        ffi.prep_closure(closure, &function->cif, closure_run, function, code) != FFI_OK)
        return false;
    function->closure = code;
    return true;
}

/* Makes the closure of a function whose library is there. */
static void function_prepare(traced *function) {
    void *library = loader_library(function->signature.library);
    if (!library || function->failed)
        return;
    void *real = loader_symbol(library, function->signature.function);
    function->failed = true;
    function->state = real ? TRACE_ALSO_NO_CLOSURE : TRACE_ALSO_NO_FUNCTION;
    if (!real) {
        LOG_W("CASTOR_TRACE_ALSO: %s has no function %s; it is not recorded", function->signature.library,
              function->signature.function);
    } else if (ffi_find()) {
        function->failed = !closure_make(function);
        if (function->failed)
            LOG_W("CASTOR_TRACE_ALSO: libffi makes no closure for %s (executable memory may be forbidden "
                  "here); it is "
                  "not recorded",
                  function->name);
    }
    if (!function->failed) {
        function->state = TRACE_ALSO_FOUND;
        __atomic_store_n((void **)&function->real, real, __ATOMIC_RELEASE);
    }
}

/* Tells the report what leads to the function's closure. */
static void places_add(const traced *function, unsigned places) {
    trace_counters *counters = counters_get();
    if (!counters)
        return;
    trace_counter *counter = &counters->counters[trace_slot(TRACE_ALSO, (uint32_t)(function - functions))];
    __atomic_fetch_add(&counter->count, places, __ATOMIC_RELAXED);
    __atomic_store_n(&counter->bytes, function->state, __ATOMIC_RELAXED);
}

static void rewrite(bool install) {
    got_change changes[SIGNATURE_FUNCTIONS_MAX];
    unsigned count = 0;
    for (unsigned i = 0; i < function_count; i++) {
        void *real = (void *)functions[i].real, *closure = functions[i].closure;
        if (real)
            changes[count++] = (got_change){.name = functions[i].signature.function,
                                            .from = install ? real : closure,
                                            .to = install ? closure : real};
    }
    /* What libffi calls to make a call must not come back to it. */
    if (count)
        got_rewrite(changes, count, (void *)ffi.call);
    for (unsigned i = 0, change = 0; i < function_count && install; i++)
        places_add(&functions[i], functions[i].real ? changes[change++].written : 0);
}

/* Who finds another thread at it goes on: waiting could be for the linker's lock, which this thread may hold. */
void anycall_refresh(void) {
    if (!__atomic_load_n(&function_count, __ATOMIC_ACQUIRE) || pthread_mutex_trylock(&lock) != 0)
        return;
    uint64_t generation = objects_generation();
    if (generation != seen_generation) {
        seen_generation = generation;
        for (unsigned i = 0; i < function_count; i++)
            if (!functions[i].real)
                function_prepare(&functions[i]);
        rewrite(true);
        /* libffi, loaded by ffi_find, is nothing to look at again. */
        seen_generation = objects_generation();
    }
    pthread_mutex_unlock(&lock);
}

bool anycall_is_used(void) {
    return __atomic_load_n(&function_count, __ATOMIC_ACQUIRE) != 0;
}

static void fork_child(void) {
    pthread_mutex_init(&lock, NULL);
}

void anycall_start(void) {
    char message[512];
    const char *text = options()->trace_also;
    unsigned count = 0;
    if (!*text)
        return;
    while (*text && count < SIGNATURE_FUNCTIONS_MAX) {
        traced *function = &functions[count];
        if (signature_parse(&text, &function->signature, message, sizeof message) != CASTOR_OK)
            return; /* the option's error has been told */
        log_format(function->name, sizeof function->name, "%s:%s", function->signature.library,
                   function->signature.function);
        trace_name_set(TRACE_CALL, HOOK_COUNT + count, function->name);
        trace_name_set(TRACE_ALSO, count, function->name);
        count++;
    }
    life_fork_register(NULL, NULL, fork_child);
    __atomic_store_n(&function_count, count, __ATOMIC_RELEASE);
    anycall_refresh();
}

void anycall_stop(void) {
    if (__atomic_load_n(&function_count, __ATOMIC_ACQUIRE) && pthread_mutex_trylock(&lock) == 0) {
        rewrite(false);
        seen_generation = UINT64_MAX;
        __atomic_store_n(&function_count, 0, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&lock);
    }
}

bool anycall_names(const char *name) {
    unsigned count = __atomic_load_n(&function_count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count; i++)
        if (__atomic_load_n((void **)&functions[i].real, __ATOMIC_ACQUIRE) &&
            strcmp(functions[i].signature.function, name) == 0)
            return true;
    return false;
}

void *anycall_answer(const char *name, void *found) {
    unsigned count = __atomic_load_n(&function_count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; found && i < count; i++)
        if (__atomic_load_n((void **)&functions[i].real, __ATOMIC_ACQUIRE) == found &&
            strcmp(functions[i].signature.function, name) == 0) {
            places_add(&functions[i], 1);
            return functions[i].closure;
        }
    return found;
}
