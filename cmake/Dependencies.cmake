# Other people's libraries. ACCELERATE_DEPS names a folder made by `./dev deps`
# for machines without a package registry; it is laid out as Debian's packages.
set(ACCELERATE_DEPS "$ENV{ACCELERATE_DEPS}" CACHE PATH "Folder made by ./dev deps")
if(ACCELERATE_DEPS)
  list(PREPEND CMAKE_PREFIX_PATH ${ACCELERATE_DEPS}/usr)
endif()

find_package(Threads REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
if(ACCELERATE_DEPS)
  # Its own minimum is a CMake whose option() forgets variables set before it.
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
  set(CMAKE_POLICY_VERSION_MINIMUM 3.5) # CMake 4 refuses older ones.
  set(YAML_CPP_BUILD_TOOLS OFF)
  set(YAML_CPP_BUILD_CONTRIB OFF)
  set(YAML_CPP_INSTALL OFF)
  set(YAML_BUILD_SHARED_LIBS OFF)
  add_subdirectory(${ACCELERATE_DEPS}/usr/src/yaml-cpp
                   ${PROJECT_BINARY_DIR}/yaml-cpp EXCLUDE_FROM_ALL SYSTEM)
else()
  find_package(yaml-cpp REQUIRED)
endif()

# A header is all of it.
find_path(ACCELERATE_XXHASH_INCLUDE xxhash.h REQUIRED)
mark_as_advanced(ACCELERATE_XXHASH_INCLUDE)

# Binary packages only: where it is missing, a stub says so.
find_path(ACCELERATE_SODIUM_INCLUDE sodium.h)
find_library(ACCELERATE_SODIUM_LIBRARY sodium)
mark_as_advanced(ACCELERATE_SODIUM_INCLUDE ACCELERATE_SODIUM_LIBRARY)
if(ACCELERATE_SODIUM_INCLUDE AND ACCELERATE_SODIUM_LIBRARY)
  set(ACCELERATE_SODIUM ${ACCELERATE_SODIUM_LIBRARY})
endif()

find_path(ACCELERATE_CURL_INCLUDE curl/curl.h)
mark_as_advanced(ACCELERATE_CURL_INCLUDE)

find_path(ACCELERATE_MICROHTTPD_INCLUDE microhttpd.h)
mark_as_advanced(ACCELERATE_MICROHTTPD_INCLUDE)

if(ACCELERATE_WITH_TORCH)
  find_package(JPEG QUIET)
  find_package(PNG QUIET)
endif()

if(ACCELERATE_TESTS)
  if(ACCELERATE_DEPS)
    add_subdirectory(${ACCELERATE_DEPS}/usr/src/googletest
                     ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL SYSTEM)
    foreach(_target gmock gtest)
      if(NOT TARGET GTest::${_target})
        add_library(GTest::${_target} ALIAS ${_target})
      endif()
    endforeach()
  else()
    find_package(GTest REQUIRED)
  endif()
endif()

if(ACCELERATE_WITH_TORCH)
  find_package(TorchWheel REQUIRED)
  if(ACCELERATE_TORCH_VERSION VERSION_LESS ACCELERATE_TORCH_FIRST OR
     ACCELERATE_TORCH_VERSION VERSION_GREATER_EQUAL ACCELERATE_TORCH_END)
    message(FATAL_ERROR "torch ${ACCELERATE_TORCH_VERSION} at ${ACCELERATE_TORCH_DIR} is not supported; install torch ${ACCELERATE_TORCH_RANGE}")
  endif()
endif()
