/* Reads the header of one safetensors file, and checks it completely. */
#ifndef SHORE_FILES_SAFETENSORS_HEADER_H
#define SHORE_FILES_SAFETENSORS_HEADER_H

#include "files/safetensors.h"

/* Appends the tensors of file f, open at st->fds[f], to st. path: for messages. */
int shore__st_header_read(struct shore__safetensors *st, uint32_t f, const char *path, uint64_t file_bytes,
                          struct shore_diag *diag);
/* Bytes of an element, by the type's name in the format; 0: unknown. */
size_t shore__st_type_bytes(const char *name);

#endif
