include(${CMAKE_CURRENT_LIST_DIR}/longshoreTargets.cmake)
