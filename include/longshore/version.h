/* Which version of the library this is. */
#ifndef LONGSHORE_VERSION_H
#define LONGSHORE_VERSION_H

/* Version of these headers. The shared library is liblongshore.so.MAJOR; while that is 0, its ABI may change with any
 * version.
 */
#define SHORE_VERSION_MAJOR 0
#define SHORE_VERSION_MINOR 2
#define SHORE_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the linked library: "0.2.0". Static; never NULL. Threading: any. */
const char *shore_version(void);

#ifdef __cplusplus
}
#endif

#endif
