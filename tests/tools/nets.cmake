# Tools that two commits are compared with. CMakeLists.txt includes this; scripts/compare-builds has the CMake of another
# commit include it too: what they draw, trace and hash is then that of one tree, src/ and *_of.c those of each.
if(TARGET tool_plan_rows OR NOT TARGET shore_tools)
  return()
endif()
get_filename_component(nets ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)
set(own ${CMAKE_SOURCE_DIR}/tests/tools)
add_executable(tool_plan_rows ${nets}/tools/plan_rows.c ${own}/plan_of.c)
target_include_directories(tool_plan_rows PRIVATE ${nets})
target_link_libraries(tool_plan_rows shore_train)

# The program, which says what it hands over to drives: objects and libraries are those of `longshore`.
function(traced target)
  foreach(name ${ARGN})
    target_link_options(${target} PRIVATE -Wl,--wrap=${name})
  endforeach()
  foreach(name update store spill spill_gathered carry discard commit commit_with scratch_put)
    target_link_options(${target} PRIVATE -Wl,--wrap=shore_fleet_${name})
  endforeach()
  target_include_directories(${target} PRIVATE ${nets})
endfunction()
add_executable(tool_longshore src/main.c ${nets}/tools/trace.c ${nets}/tools/plain.c ${own}/rows_of.c)
target_link_libraries(tool_longshore shore_tools)
traced(tool_longshore shore__memory_open shore__compute_open shore__compute_describe exp log logf powf tanh cos sincosf)
