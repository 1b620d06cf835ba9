/* What the report says of the run itself: its options, versions and machine, from the file `castor.about`. */
#include <inttypes.h>
#include <string.h>
#include "report_json.h"
#include "text.h"

static const char unknown[] = "not known";

/* Where a value came from; NULL: it is no option. */
static const char *source_of(trace_about kind) {
    return kind == TRACE_ABOUT_OPTION_SET           ? "command line"
           : kind == TRACE_ABOUT_OPTION_ENVIRONMENT ? "environment"
                                                    : NULL;
}

/* The plugin has a line of its own. */
static bool is_plugin(const char *option) {
    static const char name[] = "CASTOR_PLUGIN=";
    return strncmp(option, name, sizeof name - 1) == 0;
}

/* ---- text ---- */

static void write_options(const about *about, FILE *out) {
    size_t shown = 0;
    for (size_t i = 0; i < about->count; i++) {
        const char *source = source_of(about->facts[i].kind);
        if (source != NULL && !is_plugin(about->facts[i].value))
            fprintf(out, "  %-10s%s (%s)\n", shown++ == 0 ? "options" : "", about->facts[i].value, source);
    }
    if (shown == 0)
        fprintf(out, "  options   %s\n",
                about_find(about, TRACE_ABOUT_CASTOR) != NULL ? "the defaults" : unknown);
}

static const char *joined(const about *about, trace_about kind, char *out, size_t out_size) {
    return about_join(about, kind, out, out_size) > 0 ? out : unknown;
}

static void write_versions(const about *about, FILE *out) {
    char castor[128], torch[128], python[128];
    fprintf(out, "  versions  Castor %s, PyTorch %s, Python %s\n",
            joined(about, TRACE_ABOUT_CASTOR, castor, sizeof castor),
            joined(about, TRACE_ABOUT_TORCH, torch, sizeof torch),
            joined(about, TRACE_ABOUT_PYTHON, python, sizeof python));
}

static void write_machine(const about *about, FILE *out) {
    char gpus[512], figure[TEXT_FIGURE_MAX];
    const char *host = about_find(about, TRACE_ABOUT_HOST),
               *processor = about_find(about, TRACE_ABOUT_PROCESSOR),
               *cores = about_find(about, TRACE_ABOUT_CORES), *kernel = about_find(about, TRACE_ABOUT_KERNEL);
    uint64_t bytes = about_number(about, TRACE_ABOUT_MEMORY);
    if (host == NULL) {
        fprintf(out, "  machine   %s\n", unknown);
        return;
    }
    fprintf(out, "  machine   %s: %s, cores: %s, memory: %s, %s", host,
            processor != NULL ? processor : "processor not known", cores != NULL ? cores : unknown,
            bytes > 0 ? text_bytes(figure, bytes) : unknown, kernel != NULL ? kernel : "kernel not known");
    if (about_join(about, TRACE_ABOUT_GPU, gpus, sizeof gpus) > 0)
        fprintf(out, "\n            GPU: %s", gpus);
    fputc('\n', out);
}

void report_text_about(const report *report, FILE *out) {
    write_options(&report->about, out);
    write_versions(&report->about, out);
    write_machine(&report->about, out);
}

/* ---- JSON ---- */

static void write_joined(json_writer *json, const char *key, const about *about, trace_about kind) {
    char text[512];
    json_string(json, key, about_join(about, kind, text, sizeof text) > 0 ? text : NULL);
}

/* Members without a value are null: not known. */
void report_json_about(json_writer *json, const report *report) {
    const about *about = &report->about;
    bool known = about_find(about, TRACE_ABOUT_CASTOR) != NULL;
    if (known)
        json_array_begin(json, "options");
    else
        json_null(json, "options");
    for (size_t i = 0; known && i < about->count; i++) {
        const char *source = source_of(about->facts[i].kind), *option = about->facts[i].value;
        const char *equals = strchr(option, '=');
        char name[64];
        if (source == NULL || equals == NULL)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(equals - option), option);
        json_object_begin(json, NULL);
        json_string(json, "name", name);
        json_string(json, "value", equals + 1);
        json_string(json, "from", source);
        json_object_end(json);
    }
    if (known)
        json_array_end(json);
    json_object_begin(json, "versions");
    write_joined(json, "castor", about, TRACE_ABOUT_CASTOR);
    write_joined(json, "torch", about, TRACE_ABOUT_TORCH);
    write_joined(json, "python", about, TRACE_ABOUT_PYTHON);
    json_object_end(json);
    write_joined(json, "ranks_started", about, TRACE_ABOUT_RANKS);
    json_object_begin(json, "machine");
    write_joined(json, "host", about, TRACE_ABOUT_HOST);
    write_joined(json, "processor", about, TRACE_ABOUT_PROCESSOR);
    write_joined(json, "cores", about, TRACE_ABOUT_CORES);
    uint64_t bytes = about_number(about, TRACE_ABOUT_MEMORY);
    json_unsigned_or_null(json, "memory_bytes", bytes);
    write_joined(json, "kernel", about, TRACE_ABOUT_KERNEL);
    write_joined(json, "gpus", about, TRACE_ABOUT_GPU);
    json_object_end(json);
}
