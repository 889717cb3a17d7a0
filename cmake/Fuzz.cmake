# Fuzz targets: libFuzzer with AddressSanitizer and UBSan. libFuzzer is clang's
# (cmake/Toolchain.cmake); the libraries under test are the sanitized ones, which
# count what they pass through for it.
set(ACCELERATE_FUZZ_SECONDS 2 CACHE STRING "How long CTest runs each fuzz target")

# accelerate_fuzz_test(NAME [NEEDS libs...] [SEEDS folder] [DICTIONARY file])
# NAME.cpp has LLVMFuzzerTestOneInput. SEEDS: a folder of valid inputs to start
# from. Builds <build>/fuzz/NAME; the CTest case NAME, labelled `fuzz`, runs it
# for ACCELERATE_FUZZ_SECONDS.
function(accelerate_fuzz_test name)
  cmake_parse_arguments(ARG "" "SEEDS;DICTIONARY" "NEEDS" ${ARGN})
  set(folder ${PROJECT_BINARY_DIR}/fuzz)
  file(MAKE_DIRECTORY ${folder}/${name}.corpus)
  add_executable(${name} ${name}.cpp)
  accelerate_warnings(${name})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE accelerate_core ${ARG_NEEDS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_compile_definitions(
    ${name} PRIVATE TEST_REFERENCE_DIR="${PROJECT_SOURCE_DIR}/tests/reference")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${folder})

  set(options -max_total_time=${ACCELERATE_FUZZ_SECONDS} -rss_limit_mb=2048 -timeout=20
      -artifact_prefix=${folder}/${name}.)
  if(ARG_DICTIONARY)
    cmake_path(ABSOLUTE_PATH ARG_DICTIONARY NORMALIZE)
    list(APPEND options -dict=${ARG_DICTIONARY})
  endif()
  if(ARG_SEEDS)
    cmake_path(ABSOLUTE_PATH ARG_SEEDS NORMALIZE)
  endif()
  # What it finds goes to the first folder, and is where the next run starts.
  add_test(NAME ${name} COMMAND ${name} ${options} ${folder}/${name}.corpus ${ARG_SEEDS})
  math(EXPR timeout "${ACCELERATE_FUZZ_SECONDS} + 120")
  set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT ${timeout} ${ACCELERATE_TEST_LOAD})
endfunction()
