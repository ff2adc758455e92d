/* Describes a run's drive without opening it, on this host or another. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/clean_text.h"
#include "cli/cli.h"
#include "drive/probe/probe.h"
#include "near/opencl/opencl_device.h"
#include "run/lifecycle/volumes.h"

/* Text from the far side may be any bytes. */
static void set_error(json_t *o, const char *text) {
    json_object_set_new(o, "error", shore__clean_json(text, strlen(text)));
}

static void describe_volume(const struct shore__run *run, const struct shore__probe *p, json_t *o) {
    const struct shore__volume_desc *desc = &p->desc;
    const struct shore__record *r = &p->recovery.record;
    double share = (double)desc->segments / (double)run->layout->segments;
    json_object_update_new(
        o, json_pack("{s:I,s:I,s:I,s:f,s:I,s:I,s:I,s:b,s:b}", "place", (json_int_t)desc->drive, "generation",
                     (json_int_t)desc->generation, "segments", (json_int_t)desc->segments, "share", share, "extents",
                     (json_int_t)desc->nextents, "size_bytes", (json_int_t)p->size_bytes, "scratch_bytes",
                     (json_int_t)desc->scratch_bytes, "spill", desc->spill, "in_use", p->busy));
    if (p->recovery.valid)
        json_object_update_new(o, json_pack("{s:I,s:I,s:I}", "step", (json_int_t)r->slot[r->active & 1].step, "epoch",
                                            (json_int_t)r->epoch, "record_sequence", (json_int_t)r->sequence));
    const char *error = !shore__probe_is_of(p, run->fleet_id) ? "the volume belongs to another run"
                        : desc->generation != run->generation ? "the volume is of another placement"
                        : p->recovery.damaged_record          ? p->recovery.damage.text
                        : !p->recovery.valid                  ? "both commit records are gone"
                                                              : NULL;
    if (error) set_error(o, error);
}

/* In a volume that is a file, state that rests is a hole (SHORE_GROUP_RESTS). */
static void describe_room(const struct shore__address *at, const char *volume, json_t *o) {
    struct stat st;
    if (at->kind->has_file && stat(volume, &st) == 0 && S_ISREG(st.st_mode))
        json_object_set_new(o, "taken_bytes", json_integer((json_int_t)st.st_blocks * 512));
}

/* Given speeds, one word per drive. */
static void describe_speed(const struct shore__run *run, size_t drive, json_t *o) {
    const char *at = run->settings.drive_speeds;
    for (; at && drive; drive--)
        at = (at = strchr(at, ',')) ? at + 1 : NULL;
    if (at) json_object_set_new(o, "speed", json_stringn(at, strcspn(at, ",")));
}

/* The device that computes, if it is opened here and now. */
static void describe_device(const struct shore__address *at, size_t drive, json_t *o) {
    struct shore__cl_device device;
    struct shore_diag diag = {0};
    if (at->kind->id != SHORE__KIND_OPENCL) return;
    int rc = shore__opencl_device_here((uint32_t)drive, &device, &diag);
    const char *text = rc ? diag.text : device.name;
    json_object_set_new(o, rc ? "error" : "opencl", shore__clean_json(text, strlen(text)));
}

json_t *shore__cli_drive_json(const struct shore__run *run, size_t drive) {
    const struct shore__address *at = run->settings.drives.item[drive];
    const char *recorded = at->text;
    char *name = shore__drive_name(recorded, run->generation);
    struct shore__probe probe;
    struct shore_diag diag = {0};
    json_t *o = json_pack("{s:s}", "drive", name ? name : recorded);
    describe_speed(run, drive, o);
    describe_device(at, drive, o);
    if (!at->kind->keeps) {
        set_error(o, "in memory, gone with the process");
    } else if (shore__drive_probe(at, &probe, &diag)) {
        set_error(o, shore__said_of(&diag, recorded));
    } else {
        json_object_set_new(o, "volume", shore__clean_json(probe.path, strlen(probe.path)));
        if (probe.is_volume) {
            describe_volume(run, &probe, o);
            describe_room(at, probe.path, o);
        } else {
            set_error(o, probe.exists ? probe.trouble.text : "no volume is there");
        }
        shore__probe_free(&probe);
    }
    free(name);
    return o;
}

static const char *text_of(const json_t *o, const char *key) {
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static long long number_of(const json_t *o, const char *key) {
    return (long long)json_integer_value(json_object_get(o, key));
}

void shore__cli_drive_print(const json_t *o) {
    char shown[1200];
    const char *name = text_of(o, "drive"), *error = text_of(o, "error"), *volume = text_of(o, "volume");
    printf("%s:", shore__escape(name, strlen(name), shown, sizeof shown));
    if (json_object_get(o, "share")) {
        printf(" %.1f %% of the state (%lld segments), %s in %s, placement %lld",
               100 * json_real_value(json_object_get(o, "share")), number_of(o, "segments"),
               shore__format_size((uint64_t)number_of(o, "size_bytes")).text,
               shore__escape(volume, strlen(volume), shown, sizeof shown), number_of(o, "generation"));
        long long taken = number_of(o, "taken_bytes");
        if (taken && taken < number_of(o, "size_bytes") / 20 * 19)
            printf(", takes %s", shore__format_size((uint64_t)taken).text);
        if (json_object_get(o, "step")) printf(", step %lld, epoch %lld", number_of(o, "step"), number_of(o, "epoch"));
        if (text_of(o, "speed")[0]) printf(", speed %s", text_of(o, "speed"));
        if (text_of(o, "opencl")[0]) {
            fputs(", OpenCL device ", stdout);
            shore__cli_put_text(stdout, text_of(o, "opencl"), strlen(text_of(o, "opencl")));
        }
        if (json_is_true(json_object_get(o, "in_use"))) printf(", in use");
    }
    if (error[0]) {
        fputs(json_object_get(o, "share") ? "; " : " ", stdout);
        shore__cli_put_text(stdout, error, strlen(error));
    }
    putchar('\n');
}
