/* Parameters that are not trained. A block of which a part rests becomes two, because the state keeps nothing but the
 * parameters of blocks that rest (SHORE_GROUP_RESTS): the tensors that are not as the first one go to a side block. */
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "model/model.h"

/* A tied head's table, as PyTorch's modules name it. */
#define TIED_NAME "lm_head.weight"

static bool matches_end(const char *pattern, const char *name) {
    for (; name; name = strchr(name, '.') ? strchr(name, '.') + 1 : NULL)
        if (fnmatch(pattern, name, 0) == 0) return true;
    return false;
}

/* Whether a pattern matches a name, or its end from one of its dots on. */
static bool matches(const char *pattern, const char *name) {
    return matches_end(pattern, name) || matches_end(pattern, shore__newer_name(name).text);
}

struct patterns {
    const char *const *item;
    size_t count;
    bool *used;
};

static bool any_matches(const struct patterns *p, const char *name) {
    bool found = false;
    for (size_t i = 0; i < p->count; i++)
        if (matches(p->item[i], name)) found = p->used[i] = true;
    return found;
}

/* Lets a tensor rest if a pattern matches the names of its parts. */
static int mark(const struct shore__model *m, const struct patterns *p, struct shore__model_tensor *t,
                struct shore_diag *diag) {
    const char *rests = NULL, *trained = NULL;
    for (uint32_t i = 0; i < t->nparts; i++)
        *(any_matches(p, t->parts[i].name) ? &rests : &trained) = t->parts[i].name;
    if (t->role == SHORE__TOKEN_TABLE && m->arch.tied && any_matches(p, TIED_NAME)) rests = TIED_NAME, trained = NULL;
    t->rests = rests;
    if (!rests || !trained) return 0;
    return shore__fail(
        diag, SHORE_EUSAGE,
        "freeze: the patterns take %s and not %s, which are one matrix here: freeze all %u parts of it, or none", rests,
        trained, t->nparts);
}

static bool is_there(const struct shore__model *m, const char *pattern) {
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t t = 0; t < m->blocks[b].ntensors; t++)
            for (uint32_t p = 0; p < m->blocks[b].tensors[t].nparts; p++)
                if (matches(pattern, m->blocks[b].tensors[t].parts[p].name)) return true;
    return m->arch.tied && matches(pattern, TIED_NAME);
}

/* The pattern that takes what the user may mean by the name of a module, or a part of one; NULL: there is none. */
static const char *of_module(const struct shore__model *m, const char *name, char *out, size_t bytes) {
    snprintf(out, bytes, "%s.*", name);
    if (is_there(m, out)) return out;
    snprintf(out, bytes, "*%s*", name);
    return is_there(m, out) ? out : NULL;
}

/* Says which names there are that are like a pattern. */
static int refuse(const struct shore__model *m, const char *pattern, struct shore_diag *diag) {
    size_t count = 0, most = 0;
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t t = 0; t < m->blocks[b].ntensors; t++)
            most += m->blocks[b].tensors[t].nparts;
    const char **names = calloc(3 * most, sizeof *names);
    if (!names) return shore__out_of_memory(diag);
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t t = 0; t < m->blocks[b].ntensors; t++)
            for (uint32_t p = 0; p < m->blocks[b].tensors[t].nparts; p++) {
                const char *name = m->blocks[b].tensors[t].parts[p].name, *dot = strchr(name, '.');
                names[count++] = name;
                if (dot) names[count++] = dot + 1;
                if (dot && strchr(dot + 1, '.')) names[count++] = strchr(dot + 1, '.') + 1;
            }
    char module[128];
    const char *near = of_module(m, pattern, module, sizeof module);
    if (!near) near = shore__suggest(pattern, names, count);
    int rc = near ? shore__fail(diag, SHORE_EUSAGE, "freeze: '%s' matches no tensor of the model: did you mean '%s'?",
                                shore__shown(pattern).text, near)
                  : shore__fail(diag, SHORE_EUSAGE,
                                "freeze: '%s' matches no tensor of the model: names are such as %s and %s",
                                shore__shown(pattern).text, m->blocks[0].tensors[0].parts[0].name,
                                m->blocks[1].tensors[m->blocks[1].ntensors - 1].parts[0].name);
    free(names);
    return rc;
}

static bool is_mixed(const struct shore__model_block *b) {
    for (uint32_t t = 1; t < b->ntensors; t++)
        if (b->tensors[t].rests != b->tensors[0].rests) return true;
    return false;
}

/* A layer's experts lie in one block, at the same distance from each other. */
static int check_experts(const struct shore__model_block *b, struct shore_diag *diag) {
    const struct shore__model_tensor *of = NULL;
    for (uint32_t t = 0; t < b->ntensors; t++) {
        const struct shore__model_tensor *it = &b->tensors[t];
        if (it->expert && of && it->rests != of->rests)
            return shore__fail(diag, SHORE_EUSAGE,
                               "freeze: the patterns take %s and not %s: freeze all experts of a layer with all that "
                               "they have, or none",
                               (it->rests ? it : of)->parts[0].name, (it->rests ? of : it)->parts[0].name);
        if (it->expert) of = it;
    }
    return 0;
}

/* Moves the tensors that are not as the first one to another block. */
static int divide(struct shore__model_block *from, struct shore__model_block *to) {
    uint32_t stay = 0;
    to->tensors = calloc(from->ntensors, sizeof *to->tensors);
    if (!to->tensors) return -ENOMEM;
    for (uint32_t t = 0; t < from->ntensors; t++) {
        const struct shore__model_tensor it = from->tensors[t];
        if (it.rests == from->tensors[0].rests)
            from->tensors[stay++] = it;
        else
            to->tensors[to->ntensors++] = it;
    }
    from->ntensors = stay;
    return 0;
}

static int add_sides(struct shore__model *m) {
    uint32_t main = m->nblocks, sides = 0;
    for (uint32_t b = 0; b < main; b++)
        sides += is_mixed(&m->blocks[b]);
    struct shore__model_block *grown = realloc(m->blocks, (main + (size_t)sides) * sizeof *grown);
    if (!grown) return -ENOMEM;
    m->blocks = grown;
    memset(grown + main, 0, sides * sizeof *grown);
    for (uint32_t b = 0; b < main; b++) {
        if (!is_mixed(&grown[b])) continue;
        int rc = divide(&grown[b], &grown[m->nblocks]);
        if (rc) return rc;
        grown[m->nblocks].side = b;
        grown[b].side = m->nblocks++;
    }
    return shore__model_lay_out(m);
}

int shore__model_freeze(struct shore__model *m, const char *const *patterns, size_t count, struct shore_diag *diag) {
    struct patterns p = {patterns, count, calloc(count + 1, sizeof *p.used)};
    int rc = p.used ? 0 : shore__out_of_memory(diag);
    bool all = true;
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t t = 0; !rc && t < m->blocks[b].ntensors; t++) {
            rc = mark(m, &p, &m->blocks[b].tensors[t], diag);
            all &= m->blocks[b].tensors[t].rests;
        }
    for (uint32_t b = 0; !rc && b < m->nblocks; b++)
        rc = check_experts(&m->blocks[b], diag);
    for (size_t i = 0; !rc && i < count; i++)
        if (!p.used[i]) rc = refuse(m, patterns[i], diag);
    free(p.used);
    if (!rc && all)
        rc = shore__fail(diag, SHORE_EUSAGE,
                         "freeze: the patterns take all tensors of the model, so that nothing is trained");
    if (rc || !count) return rc;
    rc = add_sides(m);
    return rc ? shore__fail(diag, rc, "the model's description cannot be laid out: %s", shore_error_text(rc)) : 0;
}
