#!/usr/bin/env bash
# What is installed, as another program's build finds it: by pkg-config shared and static, by CMake, from C and from
# C++; and what the shared library exports.
source "$(dirname "$0")/lib.sh"
project=$(cd "$tests/.." && pwd)
built=$(dirname "$LONGSHORE")

DESTDIR="$place/stage" cmake --install "$built" --prefix /opt/longshore >"$place/log" 2>&1 || fail "installing"
# The prefix is looked for where the files are, so that a tree that was moved is found too.
root=$place/moved
mv "$place/stage/opt/longshore" "$root"
export PKG_CONFIG_PATH="$root/lib/pkgconfig" LD_LIBRARY_PATH="$root/lib"
for file in bin/longshore lib/liblongshore.so lib/liblongshore.so.0 lib/liblongshore.a include/longshore/state.h \
    share/man/man1/longshore.1 share/bash-completion/completions/longshore lib/cmake/longshore/longshoreConfig.cmake; do
    [ -e "$root/$file" ] && ok "$file is installed" || fail "$file is not installed"
done
version=$("$root/bin/longshore" --version | sed -n 's/^longshore //p')
same "pkg-config's version" "$(pkg-config --modversion longshore)" "$version"

# ---- the library -----------------------------------------------------------------------------------------------------
declared=$(grep -ohE '\bshore_[a-z0-9_]+\(' "$project"/include/longshore/*.h | tr -d '(' | sort -u)
exported=$(nm -D --defined-only "$root/lib/liblongshore.so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort -u)
same "the shared library exports what the headers declare" "$exported" "$declared"
ldd "$root/lib/liblongshore.so" | grep -qE 'dnnl|pcre|utf8proc|libz' && fail "it needs what computes, or texts" || ok "it needs little"

cat >"$place/program.c" <<'END'
#include <longshore/clip.h>
#include <longshore/memory.h>
#include <longshore/run.h>
#include <longshore/pages.h>
#include <longshore/sparse.h>
#include <longshore/state.h>
#include <longshore/device.h>
#include <longshore/store.h>
#include <longshore/table.h>
#include <longshore/version.h>
#include <stdio.h>
#include <string.h>
int main(void) {
    struct shore_tensor_spec tensor = {"w", 1000, 0};
    struct shore_block_spec block = {"b", &tensor, 1};
    struct shore_layout *layout = NULL;
    struct shore_diag diag;
    struct shore_run *run = NULL;
    void *gradient = NULL;
    double sum;
    if (shore_layout_make(&block, 1, &layout)) return 1;
    if (shore_buffer_alloc(SHORE_SEGMENT_ELEMS * sizeof(float), 0, &gradient, &diag)) return 1;
    ((float *)gradient)[layout->blocks[0].tensors[0].offset_elems] = 1;
    sum = shore_clip_sum((const float *)gradient);
    printf("%s %g\n", shore_version(), sum);
    shore_buffer_free(gradient, SHORE_SEGMENT_ELEMS * sizeof(float));
    shore_layout_free(layout);
    if (shore_run_open("/nonexistent", NULL, &run, &diag) != SHORE_EMISSING) return 1;
    return shore_sparse_bound(SHORE_SPARSE_BF16, 0, 1) != 8;
}
END
cp "$place/program.c" "$place/program.cc"
builds() { # what, command...
    local what=$1
    shift
    rm -f "$place/program"
    if ! "$@" >"$place/log" 2>&1; then fail "$what does not build"; return; fi
    same "$what" "$("$place/program" 2>&1)" "$version 1"
}
read -r -a shared < <(pkg-config --cflags --libs longshore)
read -r -a static < <(pkg-config --static --cflags --libs longshore)
strict=(-std=c11 -pedantic -Wall -Wextra -Werror)
builds "C, shared" cc "${strict[@]}" -o "$place/program" "$place/program.c" "${shared[@]}"
builds "C++, shared" c++ -std=c++17 -pedantic -Wall -Wextra -Werror -o "$place/program" "$place/program.cc" "${shared[@]}"
builds "C, static" cc "${strict[@]}" -o "$place/program" "$place/program.c" "${static[@]/#-llongshore/-l:liblongshore.a}"
ldd "$place/program" | grep -q longshore && fail "the static program needs the shared library" || ok "static is static"
mkdir "$place/user"
cp "$place/program.c" "$place/user"
cat >"$place/user/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
find_package(longshore ${version%.*} REQUIRED)
add_executable(program program.c)
target_link_libraries(program longshore::longshore)
set_target_properties(program PROPERTIES RUNTIME_OUTPUT_DIRECTORY "$place")
END
by_cmake() { cmake -S "$place/user" -B "$place/user/build" -DCMAKE_PREFIX_PATH="$root" && cmake --build "$place/user/build"; }
builds "CMake's find_package" by_cmake

# ---- the program -----------------------------------------------------------------------------------------------------
page=$root/share/man/man1/longshore.1
for heading in "LONGSHORE TRAIN" "LONGSHORE DRIVE ADD" "LONGSHORE BENCH UPDATE"; do
    grep -q "^.SH $heading\$" "$page" && ok "the page has $heading" || fail "the page lacks $heading"
done
grep -q '^.B \\-\\-memory SIZE$' "$page" && ok "the page has flags" || fail "the page lacks --memory"
completes() { # words..., what must be among the answers
    PATH=$root/bin:$PATH bash -c '
        . "$0"
        COMP_WORDS=("${@:1:$#-1}"); COMP_CWORD=$(($# - 2))
        _longshore; printf "%s\n" "${COMPREPLY[@]}"' "$root/share/bash-completion/completions/longshore" "$@" |
        grep -qx -e "${!#}" && ok "completes $*" || fail "does not complete $*"
}
completes longshore tr train
completes longshore train --mem --memory
completes longshore drive ad add
completes longshore drive add --drive-s --drive-speeds
done_testing
