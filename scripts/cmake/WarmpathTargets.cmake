# The three kinds of target in this tree. Sources are listed by hand and sorted.
#
#   warmpath_library(NAME warmpath_core_index SOURCES a.cc b.cc DEPS x y)
#   warmpath_program(NAME warmpath-router SOURCES main.cc DEPS x)   installed into bin
#   warmpath_test(NAME index_test LABELS unit index SOURCES a_test.cc DEPS x)
#
# Label `unit` puts a test into the target unit_tests, which scripts/test also builds and runs
# under AddressSanitizer. Label `tsan` puts it into tsan_tests, run under ThreadSanitizer; tests
# below tests/core have it by themselves. Label `wire` marks tests over real gRPC connections: of
# these a second run forgives ThreadSanitizer's reports, because gRPC's own hand-overs are not
# instrumented.

add_custom_target(unit_tests)
add_custom_target(tsan_tests)

# What a sanitizer run needs in its environment, whoever starts it.
set(WARMPATH_TEST_ENVIRONMENT
  "ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1"
  "UBSAN_OPTIONS=print_stacktrace=1"
  "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/scripts/tsan.supp:second_deadlock_stack=1")

function(warmpath_library)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(${ARG_NAME} STATIC ${ARG_SOURCES})
    target_include_directories(${ARG_NAME} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
    # BUILD_INTERFACE: neither our paths nor our warnings follow an installed library.
    target_link_libraries(${ARG_NAME} PUBLIC ${ARG_DEPS}
      PRIVATE ${ARG_PRIVATE_DEPS} $<BUILD_INTERFACE:warmpath_warnings>)
  else()
    add_library(${ARG_NAME} INTERFACE)
    target_include_directories(${ARG_NAME} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${ARG_NAME} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

function(warmpath_program)
  cmake_parse_arguments(ARG "NO_INSTALL" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_include_directories(${ARG_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} warmpath_warnings)
  if(NOT ARG_NO_INSTALL)
    install(TARGETS ${ARG_NAME} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endfunction()

function(warmpath_test)
  cmake_parse_arguments(ARG "NO_TSAN" "NAME;TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${ARG_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main warmpath_warnings)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${ARG_NAME} PRIVATE -O1)  # compiles in two thirds of the time of -O3
  endif()
  # One ctest entry per binary: a process start per case would dominate the run.
  # GoogleTest names the failing case in the output.
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME})
  string(FIND "${CMAKE_CURRENT_SOURCE_DIR}/" "${PROJECT_SOURCE_DIR}/tests/core/" in_core)
  # NO_TSAN: one thread only, and long.
  if(in_core EQUAL 0 AND NOT ARG_NO_TSAN)
    list(APPEND ARG_LABELS tsan)
  endif()
  list(REMOVE_DUPLICATES ARG_LABELS)
  if("unit" IN_LIST ARG_LABELS)
    add_dependencies(unit_tests ${ARG_NAME})
  endif()
  if("tsan" IN_LIST ARG_LABELS)
    add_dependencies(tsan_tests ${ARG_NAME})
  endif()
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "${WARMPATH_TEST_ENVIRONMENT}")
endfunction()
