# Options that every target shares: sanitizers, warnings, compiler cache.

option(WARMPATH_BUILD_TESTS "Build unit tests, benchmarks and the stand-in engine" ON)
set(WARMPATH_SANITIZE "" CACHE STRING "Sanitizer: empty, 'address,undefined' or 'thread'")
set_property(CACHE WARMPATH_SANITIZE PROPERTY STRINGS "" "address,undefined" "thread")
option(WARMPATH_FUZZ "Build the libFuzzer targets (needs Clang)" OFF)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(WARMPATH_CCACHE ccache)
if(WARMPATH_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${WARMPATH_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${WARMPATH_CCACHE})
endif()

# At directory scope and before any add_subdirectory, so that generated protobuf
# code is instrumented like ours.
if(WARMPATH_SANITIZE)
  add_compile_options(-fsanitize=${WARMPATH_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${WARMPATH_SANITIZE})
  if(WARMPATH_SANITIZE MATCHES "undefined")
    # These four double the time to compile our tests (41 s instead of 22 s for the longest file).
    # AddressSanitizer finds what the first three would; for the fourth, outside bytes are read with
    # memcpy only.
    add_compile_options(-fno-sanitize-recover=undefined
      -fno-sanitize=null,object-size,vptr,alignment)
  endif()
endif()

# Without an abseil that ThreadSanitizer sees inside, every absl::Mutex is invisible to it and
# all results are wrong. DT_RPATH (not RUNPATH) makes gRPC's libraries find it as well.
if(WARMPATH_SANITIZE STREQUAL "thread")
  set(WARMPATH_TSAN_LIBRARIES ${PROJECT_SOURCE_DIR}/build/tsan-deps/lib)
  if(NOT EXISTS ${WARMPATH_TSAN_LIBRARIES}/libabsl_synchronization.so)
    message(FATAL_ERROR "The tsan preset needs an instrumented abseil: run scripts/tsan_deps (one minute, once)")
  endif()
  add_link_options(LINKER:--disable-new-dtags LINKER:-rpath,${WARMPATH_TSAN_LIBRARIES})
endif()

# Coverage of all our code guides the fuzzer, not only that of the target's own file.
if(WARMPATH_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Warnings are errors in our own code only; generated headers are SYSTEM.
add_library(warmpath_warnings INTERFACE)
# Designated initialisers leave fields out on purpose: each has its default.
target_compile_options(warmpath_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wimplicit-fallthrough
  -Wno-missing-field-initializers -Werror)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(warmpath_warnings INTERFACE -Wthread-safety)
endif()
