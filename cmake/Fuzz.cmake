# Fuzz targets: libFuzzer with AddressSanitizer and UBSan. libFuzzer is clang's,
# so these files are compiled by clang++ whatever compiler the rest is built
# with; the sources under test are compiled again, instrumented.
set(ACCELERATE_FUZZ_SECONDS 2 CACHE STRING "How long CTest runs each fuzz target")
find_program(ACCELERATE_CLANGXX NAMES clang++ clang++-19 clang++-16 clang++-14 REQUIRED)

# accelerate_fuzz_test(NAME SOURCES files... [LIBRARIES names...]
#                      [FLAGS flags...] [SEEDS folder] [DICTIONARY file])
# SOURCES: the file with LLVMFuzzerTestOneInput, then all sources that it needs,
# absolute or relative to the current folder. LIBRARIES: for the linker, such as
# icuuc. SEEDS: a folder of valid inputs to start from. Builds
# <build>/fuzz/NAME; the CTest case NAME, labelled `fuzz`, runs it for
# ACCELERATE_FUZZ_SECONDS.
function(accelerate_fuzz_test name)
  cmake_parse_arguments(ARG "" "SEEDS;DICTIONARY" "SOURCES;LIBRARIES;FLAGS" ${ARGN})
  set(folder ${PROJECT_BINARY_DIR}/fuzz)
  file(MAKE_DIRECTORY ${folder}/objects ${folder}/${name}.corpus)
  set(sanitize -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all)
  set(flags -std=c++20 -g1 -O1 -fno-omit-frame-pointer ${sanitize}
      -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_BINARY_DIR}/include
      -I${PROJECT_SOURCE_DIR}/src ${ARG_FLAGS})
  set(libraries -lpthread)
  if(ACCELERATE_DEPS)
    list(APPEND flags -isystem ${ACCELERATE_DEPS}/usr/include)
    list(APPEND libraries -L${ACCELERATE_DEPS}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
  endif()
  foreach(library IN LISTS ARG_LIBRARIES)
    list(APPEND libraries -l${library})
  endforeach()

  set(sources)
  foreach(source IN LISTS ARG_SOURCES)
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    list(APPEND sources ${source})
  endforeach()
  if(ACCELERATE_UNITY)
    list(POP_FRONT sources target_file)
    list(TRANSFORM sources REPLACE "(.+)" "#include \"\\1\"" OUTPUT_VARIABLE includes)
    list(JOIN includes "\n" includes)
    string(MD5 key "${includes}")
    file(CONFIGURE OUTPUT ${folder}/objects/${key}.cpp CONTENT "${includes}\n")
    set(sources ${target_file} ${folder}/objects/${key}.cpp)
  endif()

  set(objects)
  foreach(source IN LISTS sources)
    # Targets share what they compile alike.
    string(MD5 key "${source} ${flags}")
    set(object ${folder}/objects/${key}.o)
    get_property(known GLOBAL PROPERTY ACCELERATE_FUZZ_OBJECTS)
    if(NOT object IN_LIST known)
      set_property(GLOBAL APPEND PROPERTY ACCELERATE_FUZZ_OBJECTS ${object})
      add_custom_command(
        OUTPUT ${object}
        COMMAND ${ACCELERATE_CCACHE} ${ACCELERATE_CLANGXX} ${flags} -MD -MF ${object}.d
                -MT ${object} -c ${source} -o ${object}
        DEPENDS ${source}
        DEPFILE ${object}.d
        COMMENT "Instrumenting ${source}"
        VERBATIM)
    endif()
    list(APPEND objects ${object})
  endforeach()
  add_custom_command(
    OUTPUT ${folder}/${name}
    COMMAND ${ACCELERATE_CLANGXX} ${sanitize} ${objects} ${libraries} -o ${folder}/${name}
    DEPENDS ${objects}
    COMMENT "Linking fuzz target ${name}"
    VERBATIM)
  add_custom_target(${name} ALL DEPENDS ${folder}/${name})

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
  add_test(NAME ${name} COMMAND ${folder}/${name} ${options} ${folder}/${name}.corpus
                                ${ARG_SEEDS})
  math(EXPR timeout "${ACCELERATE_FUZZ_SECONDS} + 120")
  # Leaks are looked for after an input that frees less than it allocates; the
  # search at the end of a process takes seconds.
  set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT ${timeout}
                                          ENVIRONMENT "ASAN_OPTIONS=leak_check_at_exit=0"
                                          ${ACCELERATE_TEST_LOAD})
endfunction()
