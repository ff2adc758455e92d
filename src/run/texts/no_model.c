/* Says of what is named as a model, and is none, what it is and what to do. */
#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "files/json.h"
#include "files/read_file.h"
#include "run/internal.h"

enum { CONFIG_BYTES_MOST = 1 << 20, REFERENCE_BYTES_MOST = 4096 };

/* The first entry, by name, that matches and holds a file of this name; inside NULL: that matches. NULL: none. The
 * caller frees it. */
static char *find(const char *directory, const char *pattern, const char *inside) {
    struct dirent **entries;
    int n = scandir(directory, &entries, NULL, alphasort);
    char *found = NULL;
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        bool matches = !found && name[0] != '.' && fnmatch(pattern, name, 0) == 0;
        if (matches && (!inside || shore__path_exists(shore__path_in(directory, name).text, inside)))
            found = strdup(name);
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return found;
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

/* Refuses a PEFT adapter: transformers loads such a directory as the adapter, whatever else lies in it. */
static int refuse_adapter(const char *directory, struct shore_diag *diag) {
    json_t *adapter = NULL;
    const struct shore__path path = shore__path_in(directory, SHORE__ADAPTER_CONFIG);
    char base[200] = "";
    if (!shore__path_exists(directory, SHORE__ADAPTER_CONFIG)) return 0;
    if (shore__json_read(path.text, CONFIG_BYTES_MOST, &adapter, NULL) == 0) {
        const char *name = json_string_value(json_object_get(adapter, "base_model_name_or_path"));
        if (name) shore__escape(name, strlen(name), base, sizeof base);
        json_decref(adapter);
    }
    return shore__fail(
        diag, SHORE_EINPUT,
        "%s: holds an adapter of PEFT (adapter_config.json)%s%s, not a model: name the model's directory, and this "
        "one with --adapter; if it is merged into weights that lie here already, remove adapter_config.json",
        shore__shown(directory).text, base[0] ? " for " : "", base);
}

/* ---- files and layouts of other programs ------------------------------------------------------------------------- */

static int refuse_gguf(const char *what, const char *file, struct shore_diag *diag) {
    return shore__fail(
        diag, SHORE_EINPUT,
        "%s: is a GGUF model, and Longshore reads safetensors: name the directory of the model that it "
        "was made from, or convert it in Python with transformers: "
        "AutoModelForCausalLM.from_pretrained(DIR, gguf_file=\"%s\").save_pretrained(OUT), the same with "
        "AutoTokenizer, and name OUT",
        shore__shown(what).text, shore__shown(file).text);
}

int shore__refuse_gguf_file(const char *path, struct shore_diag *diag) {
    char start[4] = "";
    const char *slash = strrchr(path, '/');
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? 0 : read(fd, start, sizeof start);
    if (fd >= 0) close(fd);
    return n == 4 && !memcmp(start, "GGUF", 4) ? refuse_gguf(path, slash ? slash + 1 : path, diag) : 0;
}

static int refuse_makers_files(const char *directory, struct shore_diag *diag) {
    return shore__fail(
        diag, SHORE_EINPUT,
        "%s: holds the weights as their maker published them (params.json, consolidated.*), not in Hugging "
        "Face's layout: download that (hf download OWNER/NAME --local-dir DIR), or convert these with the "
        "script of transformers' source (models/llama/convert_llama_weights_to_hf.py), and name the result",
        shore__shown(directory).text);
}

/* ---- the hub's cache --------------------------------------------------------------------------------------------- */

/* The commit that refs/main names, if it is there; else the first one. */
static char *snapshot_of(const char *directory, const char *snapshots) {
    char *text = NULL;
    size_t bytes;
    if (!shore__file_read(shore__path_in(directory, "refs/main").text, REFERENCE_BYTES_MOST, &text, &bytes, NULL)) {
        text[strcspn(text, "\r\n \t")] = 0;
        if (!*text || strchr(text, '/') || !shore__path_exists(snapshots, text)) *text = 0;
    }
    if (text && *text) return text;
    free(text);
    return find(snapshots, "*", NULL);
}

int shore__refuse_cache(const char *directory, struct shore_diag *diag) {
    const struct shore__shown shown = shore__shown(directory);
    const struct shore__path snapshots = shore__path_in(directory, "snapshots");
    bool repository = shore__path_exists(directory, "refs") || shore__path_exists(directory, "blobs");
    char *model = find(directory, "models--*", "snapshots"), *one = NULL;
    int rc = 0;
    if (repository && access(snapshots.text, F_OK) == 0) {
        one = snapshot_of(directory, snapshots.text);
        rc =
            one ? shore__fail(diag, SHORE_EINPUT,
                              "%s: is a repository in the hub's cache; the model lies below it: name %s/snapshots/%s",
                              shown.text, shown.text, shore__shown(one).text)
                : shore__fail(diag, SHORE_EINPUT,
                              "%s: is a repository in the hub's cache, without a snapshot in %s/snapshots: download it "
                              "again (hf download)",
                              shown.text, shown.text);
    } else if (model) {
        rc = shore__fail(diag, SHORE_EINPUT,
                         "%s: is the hub's cache, not a model: name the snapshot of one, such as %s/%s/snapshots/HASH",
                         shown.text, shown.text, shore__shown(model).text);
    }
    free(model);
    free(one);
    return rc;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static int refuse_without_config(const char *directory, struct shore_diag *diag) {
    char *gguf = find(directory, "*.gguf", NULL), *below = find(directory, "*", "config.json"),
         *makers = find(directory, "consolidated.*", NULL);
    const struct shore__shown shown = shore__shown(directory);
    int rc = shore__refuse_cache(directory, diag);
    if (rc == 0 && gguf) rc = refuse_gguf(directory, gguf, diag);
    if (rc == 0 && (makers || shore__path_exists(directory, "params.json"))) rc = refuse_makers_files(directory, diag);
    if (rc == 0)
        rc = shore__fail(diag, SHORE_EINPUT, "%s: is not a model's directory: it has no config.json%s%s%s%s",
                         shown.text, below ? "; one is in " : "", below ? shown.text : "", below ? "/" : "",
                         below ? shore__shown(below).text : "");
    free(gguf);
    free(below);
    free(makers);
    return rc;
}

int shore__refuse_no_model(const char *path, struct shore_diag *diag) {
    struct stat st;
    int rc = shore__refuse_gguf_file(path, diag);
    if (rc == 0 && stat(path, &st) == 0 && !S_ISDIR(st.st_mode))
        rc = shore__fail(diag, SHORE_EINPUT,
                         "%s: is a file: name the directory that holds the model's config.json and weights",
                         shore__shown(path).text);
    if (rc == 0 && shore__is_run(path))
        rc = shore__fail(diag, SHORE_EINPUT,
                         "%s: is a run, not a model: 'longshore export %s --out DIR' makes a model of it, and "
                         "'longshore train --resume %s' goes on with it",
                         shore__shown(path).text, shore__shown(path).text, shore__shown(path).text);
    if (rc == 0) rc = refuse_adapter(path, diag);
    return rc || shore__path_exists(path, "config.json") ? rc : refuse_without_config(path, diag);
}
