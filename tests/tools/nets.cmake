# Tools that two commits are compared with. CMakeLists.txt includes this; scripts/compare-builds has the CMake of another
# commit include it too: what they draw and hash is then that of one tree, src/ and plan_of.c those of each.
if(TARGET tool_plan_rows OR NOT TARGET shore_train)
  return()
endif()
get_filename_component(nets ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)
add_executable(tool_plan_rows ${nets}/tools/plan_rows.c ${CMAKE_SOURCE_DIR}/tests/tools/plan_of.c)
target_include_directories(tool_plan_rows PRIVATE ${nets})
target_link_libraries(tool_plan_rows shore_train)
