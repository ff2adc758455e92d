# The Python package's extension over the public headers: cffi's API mode in the limited API, so that one wheel serves every
# Python from 3.9 on. This is included for scikit-build-core; `python_package` is what a wheel needs. What it installs, `make install`
# does not.
set(built ${CMAKE_BINARY_DIR})
if(SHORE_BUILT)
  set(built ${SHORE_BUILT})
  add_library(longshore_static STATIC IMPORTED)
  set_target_properties(longshore_static PROPERTIES IMPORTED_LOCATION ${built}/liblongshore.a)
endif()
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
file(GLOB public_headers CONFIGURE_DEPENDS include/longshore/*.h)
set(binding ${CMAKE_BINARY_DIR}/_native.c)
add_custom_command(OUTPUT ${binding} VERBATIM DEPENDS ${public_headers} ${CMAKE_SOURCE_DIR}/scripts/python-binding
                   COMMAND Python::Interpreter ${CMAKE_SOURCE_DIR}/scripts/python-binding ${CMAKE_SOURCE_DIR}/include/longshore ${binding})
Python_add_library(python_native MODULE ${binding})
set_target_properties(python_native PROPERTIES OUTPUT_NAME _native SUFFIX .abi3.so)
target_compile_definitions(python_native PRIVATE Py_LIMITED_API=0x03090000)
target_compile_options(python_native PRIVATE -w)
target_link_libraries(python_native PRIVATE longshore_static ${engine_needs})
target_link_options(python_native PRIVATE -Wl,--exclude-libs,ALL)
add_custom_target(python_package DEPENDS python_native)
if(NOT SHORE_BUILT)
  add_dependencies(python_package longshore man)
endif()
install(TARGETS python_native DESTINATION longshore COMPONENT python EXCLUDE_FROM_ALL)
install(PROGRAMS ${built}/longshore DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python EXCLUDE_FROM_ALL)
# As `make install` has them: man and bash look below the prefix of an environment, too.
install(FILES ${built}/longshore.1 DESTINATION ${SKBUILD_DATA_DIR}/share/man/man1 COMPONENT python EXCLUDE_FROM_ALL)
install(FILES ${CMAKE_SOURCE_DIR}/packaging/longshore.bash RENAME longshore COMPONENT python EXCLUDE_FROM_ALL
        DESTINATION ${SKBUILD_DATA_DIR}/share/bash-completion/completions)
