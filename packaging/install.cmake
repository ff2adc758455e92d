# The state engine and runs as other programs link them, liblongshore.so and liblongshore.a, and what is installed.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
foreach(room base number near storage drive report stream step store table machine plan page)
  list(APPEND engine_objects $<TARGET_OBJECTS:shore_${room}>)
endforeach()
# Of the rooms of a run, what its door needs: neither its texts nor what computes.
foreach(room run model files)
  list(APPEND run_objects $<TARGET_OBJECTS:shore_${room}>)
  list(APPEND run_archives $<TARGET_FILE:shore_${room}>)
  list(APPEND run_targets shore_${room})
endforeach()
set(door $<FILTER:$<TARGET_OBJECTS:shore_run>,INCLUDE,/src/run/door/>)
set(engine_packages "libxxhash jansson yajl blkid liburing")

add_library(longshore_shared SHARED ${engine_objects} ${door})
target_link_libraries(longshore_shared PRIVATE ${run_archives})
add_dependencies(longshore_shared ${run_targets})
set(exports ${CMAKE_CURRENT_LIST_DIR}/longshore.map)
target_link_options(longshore_shared PRIVATE -Wl,--version-script=${exports})
if(NOT SHORE_SANITIZE) # whose functions the program brings
  target_link_options(longshore_shared PRIVATE -Wl,--no-undefined)
endif()
set_target_properties(longshore_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                      LINK_DEPENDS "${exports};${run_archives}")
add_library(longshore_static STATIC ${engine_objects} ${run_objects})
foreach(kind shared static)
  target_link_libraries(longshore_${kind} PRIVATE ${engine_needs})
  target_include_directories(longshore_${kind} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set_target_properties(longshore_${kind} PROPERTIES OUTPUT_NAME longshore LINKER_LANGUAGE C)
endforeach()
set_target_properties(longshore_shared PROPERTIES EXPORT_NAME longshore)

add_custom_command(OUTPUT longshore.1 VERBATIM DEPENDS longshore ${CMAKE_SOURCE_DIR}/scripts/man-page
                   COMMAND sh -c "\"$0\" \"$1\" > longshore.1" ${CMAKE_SOURCE_DIR}/scripts/man-page $<TARGET_FILE:longshore>)
add_custom_target(man ALL DEPENDS longshore.1)

file(RELATIVE_PATH prefix_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${CMAKE_CURRENT_LIST_DIR}/longshore.pc.in longshore.pc @ONLY)
set(cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/longshore)
write_basic_package_version_file(longshoreConfigVersion.cmake COMPATIBILITY SameMinorVersion)

install(TARGETS longshore longshore_static)
install(TARGETS longshore_shared EXPORT longshoreTargets)
install(EXPORT longshoreTargets NAMESPACE longshore:: DESTINATION ${cmake_dir})
install(FILES ${CMAKE_CURRENT_LIST_DIR}/longshoreConfig.cmake ${CMAKE_BINARY_DIR}/longshoreConfigVersion.cmake
        DESTINATION ${cmake_dir})
install(FILES ${CMAKE_BINARY_DIR}/longshore.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/longshore DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_BINARY_DIR}/longshore.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${CMAKE_CURRENT_LIST_DIR}/longshore.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
        RENAME longshore)
