/* The header of one safetensors file, checked wholly. */
#ifndef SHORE_FILES_SAFETENSORS_HEADER_H
#define SHORE_FILES_SAFETENSORS_HEADER_H

#include "files/safetensors.h"

/* Appends the tensors of file f, open at st->fds[f], to st. path is for messages. */
int shore__st_header_read(struct shore__safetensors *st, uint32_t f, const char *path, uint64_t file_bytes,
                          struct shore_diag *diag);
/* Of an element of a type, by its name in the format; 0: there is none of that name. */
size_t shore__st_type_bytes(const char *name);

#endif
