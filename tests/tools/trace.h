/* A line of what a traced program says of itself: see trace.c. */
#ifndef TESTS_TOOLS_TRACE_H
#define TESTS_TOOLS_TRACE_H

__attribute__((format(printf, 1, 2))) void trace(const char *format, ...);

#endif
