# Compiler, linker and output folders, the same for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
# -fPIC for programs too: they share one precompiled header with the library.
add_compile_options(-fPIC)
# Rates and positions are those of Python to the last bit: a fused multiply-add,
# which compilers choose by themselves where the machine has one, rounds once
# instead of twice.
add_compile_options(-ffp-contract=off)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# The time goes into torch's kernels: -O3 here only costs compile time.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
list(APPEND CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}" "$ORIGIN")
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

find_program(ACCELERATE_CCACHE ccache)
if(ACCELERATE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache hits through a precompiled header only when told that macros
  # and time stamps inside it do not matter; relative paths let build folders
  # share what was compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${ACCELERATE_CCACHE})
endif()

# Sanitized libraries are too large for the branches that mold 1.10 makes on
# 64-bit Arm: an assertion of its own fails.
find_program(ACCELERATE_MOLD mold)
if(ACCELERATE_MOLD AND NOT ACCELERATE_SANITIZE)
  add_link_options(-fuse-ld=mold)
endif()

# -fpch-preprocess lets ccache see which precompiled header a file used.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()

if(ACCELERATE_SANITIZE)
  # -g1: a report shows lines, which is all that is asked of it.
  add_compile_options(-fsanitize=${ACCELERATE_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${ACCELERATE_SANITIZE})
endif()
if(ACCELERATE_FUZZ AND NOT (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND ACCELERATE_SANITIZE))
  message(
    FATAL_ERROR
      "[fuzz] ACCELERATE_FUZZ got ${CMAKE_CXX_COMPILER_ID} and ACCELERATE_SANITIZE="
      "'${ACCELERATE_SANITIZE}', expected clang and sanitizers: "
      "CXX=clang++-16 cmake --preset asan -DACCELERATE_FUZZ=ON, in a new build folder")
endif()
