# The state engine as other programs link it, liblongshore.so and liblongshore.a, and what is installed.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
foreach(room base number near storage drive stream)
  list(APPEND engine_objects $<TARGET_OBJECTS:shore_${room}>)
endforeach()
set(engine_packages libxxhash)
set(engine_needs PkgConfig::XXHASH OpenMP::OpenMP_C Threads::Threads m)
if(BLKID_FOUND)
  list(APPEND engine_packages blkid)
  list(APPEND engine_needs PkgConfig::BLKID)
endif()
if(URING_FOUND)
  list(APPEND engine_packages liburing)
  list(APPEND engine_needs PkgConfig::URING)
endif()
list(JOIN engine_packages " " engine_packages)

add_library(longshore_shared SHARED ${engine_objects})
set(exports ${CMAKE_CURRENT_LIST_DIR}/longshore.map)
target_link_options(longshore_shared PRIVATE -Wl,--version-script=${exports})
if(NOT SHORE_SANITIZE) # whose functions the program brings
  target_link_options(longshore_shared PRIVATE -Wl,--no-undefined)
endif()
set_target_properties(longshore_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                      LINK_DEPENDS ${exports})
add_library(longshore_static STATIC ${engine_objects})
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
