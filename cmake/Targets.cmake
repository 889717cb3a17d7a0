# How targets of this project are made.

# Warnings for our own files; other people's headers are SYSTEM. Whether they are
# errors is up to CMAKE_COMPILE_WARNING_AS_ERROR: a newer compiler or torch must
# not break a user's build.
function(accelerate_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # GCC's -Wconversion leaves signs alone.
    target_compile_options(${target} PRIVATE -Wno-sign-conversion)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # False alarms of GCC 12 on std::string (GCC bugs 105651, 105562).
    target_compile_options(${target} PRIVATE -Wno-restrict -Wno-maybe-uninitialized)
  endif()
endfunction()

# accelerate_library(NAME [NEEDS libs...]): a shared library whose sources the
# module folders add with target_sources, installed and exported. Projects know
# accelerate_core as accelerate::core, from an installation and from a source tree.
function(accelerate_library name)
  cmake_parse_arguments(ARG "" "" "NEEDS" ${ARGN})
  add_library(${name} SHARED)
  string(REGEX REPLACE "^accelerate_" "" exported ${name})
  add_library(accelerate::${exported} ALIAS ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${exported})
  accelerate_warnings(${name})
  target_include_directories(
    ${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
           $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(${name} PUBLIC cxx_std_20)
  if(ACCELERATE_FUZZ)
    # What libFuzzer reads; -fsanitize=fuzzer-no-link, which also watches the depth
    # of the stack, takes twice the time to compile.
    target_compile_options(
      ${name} PRIVATE -fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp)
  endif()
  if(NOT SKBUILD) # Wheels hold no links.
    set_target_properties(${name} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0)
  endif()
  target_link_libraries(${name} PUBLIC ${ARG_NEEDS})
  set_property(GLOBAL APPEND PROPERTY ACCELERATE_LIBRARIES ${name})
endfunction()

# accelerate_unity(TARGET [groups...]): with ACCELERATE_UNITY, the sources are
# compiled a group at a time: most of the time of a file goes into the headers
# that files next to it include, too. A group is a list of module folders, in one
# string; without groups all sources are one. Files with options of their own
# stay alone.
function(accelerate_unity target)
  if(NOT ACCELERATE_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder} OUTPUT_VARIABLE path)
    set(unit all)
    foreach(group IN LISTS ARGN)
      string(REPLACE " " ";" modules "${group}")
      foreach(module IN LISTS modules)
        set(module_folder ${CMAKE_CURRENT_SOURCE_DIR}/${module})
        cmake_path(IS_PREFIX module_folder ${path} is_inside)
        if(is_inside)
          string(MAKE_C_IDENTIFIER "${group}" unit)
        endif()
      endforeach()
    endforeach()
    set_source_files_properties(${source} TARGET_DIRECTORY ${target}
                                PROPERTIES UNITY_GROUP ${unit})
  endforeach()
endfunction()

# accelerate_pch(NAME headers... NEEDS libs... [OPTIONS flags...]): a precompiled
# header that targets compiled with the same flags reuse.
function(accelerate_pch name)
  cmake_parse_arguments(ARG "" "" "NEEDS;OPTIONS" ${ARGN})
  file(WRITE ${PROJECT_BINARY_DIR}/${name}.cpp "")
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/${name}.cpp)
  target_link_libraries(${name} PUBLIC ${ARG_NEEDS})
  target_compile_options(${name} PRIVATE ${ARG_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${ARG_UNPARSED_ARGUMENTS})
endfunction()

# Tests are compiled often and run once.
set(ACCELERATE_TEST_OPTIONS -O0)
function(accelerate_test_options target)
  accelerate_warnings(${target})
  target_compile_options(${target} PRIVATE ${ACCELERATE_TEST_OPTIONS})
endfunction()

# CTest's jobs are thirds of a core, and `./dev test` has two more than there
# are: tests that wait for processes and clocks most of their time
# (accelerate_tests_wait) run beside those that compute, and begin first: none
# is waited for at the end.
set(ACCELERATE_TEST_LOAD PROCESSORS 3)
function(accelerate_tests_wait)
  set_tests_properties(${ARGN} PROPERTIES PROCESSORS 1 COST 1000)
endfunction()

# Tests see no GPU, so that they are the same on every machine. Those that need
# one have the label `gpu`, and see what there is, one after the other: they
# measure its memory.
set(ACCELERATE_TEST_NO_GPU "CUDA_VISIBLE_DEVICES=")
set(ACCELERATE_TEST_GPU RESOURCE_LOCK gpu)

# accelerate_test(NAME SOURCES files... [NEEDS libs...] [LABELS labels...]
#                 [TORCH] [TIMEOUT seconds])
# One GoogleTest program, run as one CTest case. TORCH adds the training
# library, its precompiled header and the support for ranks.
function(accelerate_test name)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT" "SOURCES;NEEDS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  accelerate_test_options(${name})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src
                                             ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE accelerate_core test_support ${ARG_NEEDS}
                                        GTest::gmock nlohmann_json::nlohmann_json)
  target_compile_definitions(
    ${name}
    PRIVATE TEST_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
            TEST_REFERENCE_DIR="${PROJECT_SOURCE_DIR}/tests/reference")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY
                                           ${PROJECT_BINARY_DIR}/tests)
  if(ARG_TORCH)
    target_link_libraries(${name} PRIVATE accelerate test_torch_support)
    accelerate_loads_cuda(${name})
    target_precompile_headers(${name} REUSE_FROM accelerate_test_pch)
    list(APPEND ARG_LABELS torch)
  else()
    target_link_libraries(${name} PRIVATE test_main)
    target_precompile_headers(${name} REUSE_FROM accelerate_core_test_pch)
    list(APPEND ARG_LABELS core)
  endif()
  accelerate_unity(${name})
  set(environment "OMP_NUM_THREADS=1")
  add_test(NAME ${name} COMMAND ${name})
  if(gpu IN_LIST ARG_LABELS)
    set_tests_properties(${name} PROPERTIES ${ACCELERATE_TEST_GPU})
  else()
    list(APPEND environment ${ACCELERATE_TEST_NO_GPU})
  endif()
  set_tests_properties(
    ${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
                       SKIP_RETURN_CODE 77 ENVIRONMENT "${environment}"
                       ${ACCELERATE_TEST_LOAD})
endfunction()

# accelerate_gpu_cases(NAMES...): the suites `...Gpu` of programs whose other
# tests see no GPU, as cases of their own.
function(accelerate_gpu_cases)
  foreach(name IN LISTS ARGN)
    add_test(NAME ${name}_on_gpu COMMAND ${name} --gtest_filter=*Gpu.*)
    set_tests_properties(
      ${name}_on_gpu PROPERTIES LABELS gpu TIMEOUT 300 SKIP_RETURN_CODE 77
                                ENVIRONMENT "OMP_NUM_THREADS=1" ${ACCELERATE_TEST_GPU}
                                ${ACCELERATE_TEST_LOAD})
  endforeach()
endfunction()

# accelerate_program(NAME sources... [NEEDS libs...] [ALONE]): an example or a
# benchmark on the training library. Where tests run programs, these are compiled
# as tests are; the libraries, in which the time of a training goes, are not.
# ALONE: some builds have no other program, where a precompiled header for
# programs costs more than it saves, so this one takes the library's; in every
# build, so that ccache has it for `pip install .`.
function(accelerate_program name)
  cmake_parse_arguments(ARG "ALONE" "" "NEEDS" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  accelerate_program_options(${name} ${ARG_ALONE})
  target_link_libraries(${name} PRIVATE accelerate ${ARG_NEEDS})
  accelerate_loads_cuda(${name})
endfunction()

# The training library opens its CUDA part as it is loaded, which no link says.
function(accelerate_loads_cuda target)
  if(TARGET accelerate_cuda)
    add_dependencies(${target} accelerate_cuda)
  endif()
endfunction()

function(accelerate_program_options target is_alone)
  accelerate_warnings(${target})
  if(is_alone)
    target_precompile_headers(${target} REUSE_FROM accelerate_library_pch)
  elseif(ACCELERATE_TESTS AND NOT ACCELERATE_BENCHMARKS)
    target_compile_options(${target} PRIVATE ${ACCELERATE_TEST_OPTIONS})
    target_precompile_headers(${target} REUSE_FROM accelerate_test_pch)
    # GCC takes the header only with the macros that it was compiled with.
    foreach(kind definitions options)
      string(TOUPPER ${kind} property)
      cmake_language(CALL target_compile_${kind} ${target} PRIVATE
                     $<TARGET_PROPERTY:GTest::gtest,INTERFACE_COMPILE_${property}>)
    endforeach()
  else()
    target_precompile_headers(${target} REUSE_FROM accelerate_program_pch)
  endif()
endfunction()
