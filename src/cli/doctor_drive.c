/* The checks of `doctor` for drives. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/clean_text.h"
#include "cli/cli.h"
#include "cli/doctor.h"
#include "drive/probe/probe.h"
#include "drive/probe/speed.h"
#include "drive/remote/transport.h"
#include "near/opencl/opencl_device.h"

#define STATE_BYTES (12u * SHORE_SEGMENT_ELEMS) /* of AdamW with moments in fp32 */

void shore__doctor_ssh(struct shore__report *r, bool needed) {
    char version[256], *const ask[] = {(char *)"ssh", (char *)"-V", NULL};
    const char *rsh = getenv(SHORE__RSH_VARIABLE);
    if (rsh && *rsh)
        shore__report_add(r, "ssh", SHORE__FINE, NULL, NULL, "'%s' is used instead", rsh);
    else if (shore__doctor_ask(ask, version, sizeof version)) {
        version[strcspn(version, "\n")] = '\0';
        shore__report_add(r, "ssh", SHORE__FINE, NULL, json_pack("{s:s}", "version", version), "%s", version);
    } else
        shore__report_add(r, "ssh", needed ? SHORE__BROKEN : SHORE__FINE,
                          needed ? "install OpenSSH's client (openssh-client)" : NULL, NULL, "not found%s",
                          needed ? "" : "; only drives on other hosts need it");
}

void shore__doctor_refuse(struct shore__report *r, const char *drive, const struct shore_diag *why) {
    struct shore_diag whole;
    shore_diag_say(why, shore__cli_advice, whole.text, sizeof whole.text);
    shore__report_add(r, drive, SHORE__BROKEN, NULL, NULL, "%s", shore__said_of(&whole, drive));
}

/* ---- on other hosts ---------------------------------------------------------------------------------------------- */

static void remote(struct shore__report *r, const struct shore__address *at) {
    const char *path = at->text;
    struct shore_diag diag = {0};
    struct shore__probe probe;
    uint64_t speed = 0, link = 0;
    int rc = shore__drive_probe(at, &probe, &diag);
    if (rc) {
        shore__doctor_refuse(r, path, &diag);
        return;
    }
    json_t *facts = json_pack("{s:I}", "room_bytes", (json_int_t)probe.capacity_bytes);
    const struct shore__site site = {.at = at};
    rc = probe.is_device ? 0 : shore__site_measure(&site, SHORE_IO_AUTO, STATE_BYTES, &speed, &link, &diag);
    if (probe.is_device) {
        shore__report_add(r, path, SHORE__FINE, NULL, facts, "longshore answers; a block device of %s, not measured",
                          shore__format_size(probe.capacity_bytes).text);
    } else if (rc) {
        shore__report_add(r, path, SHORE__BROKEN, NULL, facts, "%s", shore__said_of(&diag, path));
    } else {
        json_object_set_new(facts, "update_bytes_per_second", json_integer((json_int_t)speed));
        json_object_set_new(facts, "link_bytes_per_second", json_integer((json_int_t)link));
        shore__report_add(r, path, SHORE__FINE, NULL, facts,
                          "longshore answers; room for %s, updates %s/s, its link carries %s/s",
                          shore__format_size(probe.capacity_bytes).text, shore__format_size(speed).text,
                          shore__format_size(link).text);
    }
    shore__probe_free(&probe);
}

/* ---- of this host ------------------------------------------------------------------------------------------------ */

static json_t *facts_of(const struct shore__whereabouts *w) {
    static const char *const grounds[] = {"disk", "memory", "network", "device"};
    return json_pack("{s:s,s:o,s:s,s:s,s:o,s:I,s:I}", "ground", grounds[w->ground], "device",
                     shore__clean_json(w->device, strlen(w->device)), "disk", w->disk, "file_system", w->file_system,
                     "mount_point", shore__clean_json(w->mount_point, strlen(w->mount_point)), "room_bytes",
                     (json_int_t)w->free_bytes, "total_bytes", (json_int_t)w->total_bytes);
}

/* Advice about a drive that works. NULL: none. */
static const char *advice_on(const struct shore__whereabouts *w, const struct shore__drive_rates *rates,
                             const struct shore__whereabouts *before, size_t nbefore) {
    if (w->ground == SHORE__GROUND_MEMORY)
        return "it lies in memory, beside the budget, and is gone with the next start: name a directory on a drive";
    for (size_t i = 0; i < nbefore; i++)
        if (shore__whereabouts_share(&before[i], w))
            return "it shares its device with a drive named before, and so its speed: one of them is enough";
    if (w->ground == SHORE__GROUND_NETWORK)
        return "another host's file system: --drive ssh://HOST/PATH moves far less over the network";
    if (rates && !rates->direct)
        return "no direct I/O: everything goes through the page cache; ext4, XFS and btrfs on a drive have it";
    return w->is_root ? "the root file system: a drive of its own is not slowed by what else runs" : NULL;
}

static void block_device(struct shore__report *r, const char *path, const struct shore__whereabouts *w,
                         const struct shore__whereabouts *before, size_t nbefore) {
    struct shore_diag diag = {0};
    char text[600];
    struct shore__file file;
    int rc = shore__file_open(path, SHORE_IO_AUTO, 0, &file, &diag);
    if (rc) {
        shore__report_add(r, path, SHORE__BROKEN, NULL, facts_of(w), "%s", shore__said_of(&diag, path));
        return;
    }
    bool direct = file.direct;
    shore__file_close(&file);
    json_t *facts = facts_of(w);
    json_object_set_new(facts, "direct", json_boolean(direct));
    const char *advice = advice_on(w, NULL, before, nbefore);
    shore__report_add(r, path, advice ? SHORE__WEAK : SHORE__FINE, advice, facts,
                      "%s; %s I/O; not measured, because that would overwrite it ('longshore bench disk --overwrite')",
                      shore__whereabouts_text(w, text, sizeof text), direct ? "direct" : "buffered");
}

static void files(struct shore__report *r, const char *path, const char *beside, const struct shore__whereabouts *w,
                  const struct shore__whereabouts *before, size_t nbefore) {
    struct shore_diag diag = {0};
    struct shore__drive_rates rates;
    char text[600];
    int rc = shore__drive_rates_measure(beside, 0, 0, shore__cli_stop_wanted, &rates, &diag);
    shore__whereabouts_text(w, text, sizeof text);
    if (rc == -ECANCELED) return;
    if (rc) {
        bool full = rc == -ENOSPC || rc == -EDQUOT;
        shore__report_add(r, path, SHORE__BROKEN, full ? NULL : "no volume can be made there", facts_of(w), "%s; %s",
                          text, shore__said_of(&diag, path));
        return;
    }
    json_t *facts = facts_of(w);
    json_object_update_new(
        facts, json_pack("{s:b,s:s,s:b,s:I,s:I,s:I}", "direct", rates.direct, "backend", rates.backend, "shares_blocks",
                         rates.shares_blocks, "read_bytes_per_second", (json_int_t)rates.read, "write_bytes_per_second",
                         (json_int_t)rates.write, "update_bytes_per_second", (json_int_t)rates.update));
    const char *advice = advice_on(w, &rates, before, nbefore);
    shore__report_add(r, path, advice ? SHORE__WEAK : SHORE__FINE, advice, facts,
                      "%s; %s I/O (%s); reads %s/s, writes %s/s, both at once %s/s; snapshots %s", text,
                      rates.direct ? "direct" : "buffered", rates.backend, shore__format_size(rates.read).text,
                      shore__format_size(rates.write).text, shore__format_size(rates.update).text,
                      rates.shares_blocks ? "share blocks" : "are whole copies");
}

/* What computes UPDATE of a drive, if that is a device. */
static void computing(struct shore__report *r, const struct shore__address *at) {
    struct shore__cl_device device;
    struct shore_diag diag = {0};
    if (at->kind->id != SHORE__KIND_OPENCL) return;
    if (shore__opencl_device_here(0, &device, &diag))
        shore__report_add(r, at->text, SHORE__BROKEN, NULL, NULL, "%s", shore__said_of(&diag, at->text));
    else
        shore__report_add(r, at->text, SHORE__FINE, NULL, NULL,
                          "the OpenCL device %s, with %s of memory, computes UPDATE", device.name,
                          shore__format_size(device.memory).text);
}

bool shore__doctor_drive(struct shore__report *r, const struct shore__address *at,
                         const struct shore__whereabouts *before, size_t nbefore, struct shore__whereabouts *out) {
    const char *path = at->kind->has_file ? at->path : at->text;
    struct stat st;
    struct shore_diag diag = {0};
    char *beside = NULL;
    if (at->kind->served) {
        remote(r, at);
        return false;
    }
    if (!at->kind->keeps) {
        shore__report_add(r, path, SHORE__FINE, NULL, NULL, "memory of this machine, which keeps nothing");
        return false;
    }
    computing(r, at);
    bool there = stat(path, &st) == 0, directory = there && S_ISDIR(st.st_mode);
    int rc = shore__whereabouts(path, out, &diag);
    if (!rc && there && !directory && !S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
        rc = shore__fail(&diag, SHORE_EUSAGE, "%s: a special file, which can be no drive", path);
    if (!rc && !there && shore__file_may_be_made(path, NULL))
        rc = shore__fail(&diag, SHORE_EMISSING, "%s: is not there", path);
    if (!rc && asprintf(&beside, directory ? "%s/longshore.doctor-%ld" : "%s.doctor-%ld", path, (long)getpid()) < 0)
        rc = shore__out_of_memory(&diag);
    if (rc)
        shore__report_add(r, path, SHORE__BROKEN, "make the directory, mount the drive, or name another", NULL, "%s",
                          shore__said_of(&diag, path));
    else if (there && S_ISBLK(st.st_mode))
        block_device(r, path, out, before, nbefore);
    else
        files(r, path, beside, out, before, nbefore);
    if (!rc) free(beside);
    return rc == 0;
}
