# A library that carries its own copy of the C++ standard library loads beside
# torch, and crashes at the first exception or stream that crosses between them.
# Looked for in what the linker makes: a compiler may be configured so, and flags
# come by many ways.
set(_probe ${PROJECT_BINARY_DIR}/CMakeFiles/standard_library)
file(WRITE ${_probe}.cpp "#include <iostream>\nvoid say() { std::cout << 1; }\n")
separate_arguments(_flags UNIX_COMMAND "${CMAKE_SHARED_LINKER_FLAGS}")
try_compile(_links ${_probe} ${_probe}.cpp
            COMPILE_DEFINITIONS -fPIC
            LINK_OPTIONS -shared ${_flags}
            COPY_FILE ${_probe}.so COPY_FILE_ERROR _ignored)
if(_links AND CMAKE_READELF)
  execute_process(COMMAND ${CMAKE_READELF} -d ${_probe}.so OUTPUT_VARIABLE _needed ERROR_QUIET)
  if(_needed MATCHES "NEEDED" AND NOT _needed MATCHES "(libstdc\\+\\+|libc\\+\\+)\\.so")
    message(FATAL_ERROR "[configure] ${CMAKE_CXX_COMPILER} links the C++ standard library statically, expected the shared one that torch has too: leave out -static-libstdc++, or choose another compiler with -DCMAKE_CXX_COMPILER=g++")
  endif()
endif()
