# For -DCMAKE_PROJECT_longshore_INCLUDE=: whatever commit is configured, its tools are those of the tree that this file lies in.
set(SHORE_NETS ${CMAKE_CURRENT_LIST_DIR}/nets.cmake)
cmake_language(DEFER CALL include ${SHORE_NETS})
