# Finds torch without torch's own package, which demands a CUDA toolkit where
# torch was built for CUDA, even if nothing is compiled for a GPU.
#
# Looked at in this order: ACCELERATE_TORCH_DIR; a LibTorch folder on
# CMAKE_PREFIX_PATH; the site-packages of ACCELERATE_PYTHON (default: python3).
# What is found is not cached, so that the next configuration may name another.
#
# Gives: accelerate::torch (headers, libraries), ACCELERATE_TORCH_DIR,
# ACCELERATE_TORCH_VERSION, ACCELERATE_TORCH_CUDA (torch has CUDA),
# ACCELERATE_TORCH_NCCL (and the headers of CUDA and NCCL are here),
# ACCELERATE_CUDA_VERSION (of these headers, the major number; else 0).

# In a project that asks for a CMake below 3.21, set(CACHE) would else remove the
# variable that accelerateConfig.cmake gives (CMP0126).
cmake_policy(VERSION 3.25)
set(ACCELERATE_TORCH_DIR "" CACHE PATH "Folder with torch's lib/ and include/; looked for where empty")
set(ACCELERATE_PYTHON "$ENV{ACCELERATE_PYTHON}" CACHE STRING
    "Python whose installed torch is used")
if(SKBUILD)
  # pip's build environment hides the packages of the one that it installs into.
  set(ACCELERATE_PYTHON ${Python_EXECUTABLE})
endif()

set(_looked_in ${ACCELERATE_TORCH_DIR})
if(NOT ACCELERATE_TORCH_DIR)
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
    if(EXISTS ${prefix}/lib/libtorch_cpu.so AND EXISTS ${prefix}/include/torch)
      set(ACCELERATE_TORCH_DIR ${prefix})
      break()
    endif()
  endforeach()
endif()
if(NOT ACCELERATE_TORCH_DIR)
  set(_python ${ACCELERATE_PYTHON})
  if(NOT _python)
    set(_python python3)
  endif()
  execute_process(
    COMMAND ${_python} -c "import sysconfig; print(sysconfig.get_path('purelib'))"
    OUTPUT_VARIABLE _purelib OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET RESULT_VARIABLE _failed)
  set(_looked_in ${_purelib})
  if(NOT _failed AND EXISTS ${_purelib}/torch/lib/libtorch_cpu.so)
    file(REAL_PATH ${_purelib}/torch ACCELERATE_TORCH_DIR)
  endif()
endif()

# Wheels and LibTorch folders have these headers alike; the first is where recent
# ones keep the number, the second where the others do.
set(ACCELERATE_TORCH_VERSION "")
foreach(_file torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(EXISTS ${ACCELERATE_TORCH_DIR}/include/${_file} AND NOT ACCELERATE_TORCH_VERSION)
    file(READ ${ACCELERATE_TORCH_DIR}/include/${_file} _text)
    if(_text MATCHES "\"([0-9]+\\.[0-9]+\\.[0-9]+)")
      set(ACCELERATE_TORCH_VERSION ${CMAKE_MATCH_1})
    endif()
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  TorchWheel
  REQUIRED_VARS ACCELERATE_TORCH_DIR ACCELERATE_TORCH_VERSION
  VERSION_VAR ACCELERATE_TORCH_VERSION
  REASON_FAILURE_MESSAGE
    "no torch found in '${_looked_in}': install torch ${ACCELERATE_TORCH_RANGE} there first (pip install torch), set ACCELERATE_PYTHON to a Python that has it, or put a LibTorch folder on CMAKE_PREFIX_PATH")
if(NOT TorchWheel_FOUND)
  return()
endif()

# CUDA's and NCCL's headers: wheels bring them in site-packages/nvidia. A LibTorch
# folder has none, and a wheel lacks crt/, a package of its own: there a toolkit
# has them.
get_filename_component(_site ${ACCELERATE_TORCH_DIR} DIRECTORY)
file(GLOB _nvidia_includes ${_site}/nvidia/*/include)
set(ACCELERATE_TORCH_CUDA OFF)
set(ACCELERATE_TORCH_NCCL OFF)
set(ACCELERATE_CUDA_VERSION 0)
set(_cuda_includes)
if(EXISTS ${ACCELERATE_TORCH_DIR}/lib/libtorch_cuda.so)
  set(ACCELERATE_TORCH_CUDA ON)
  find_program(ACCELERATE_NVCC nvcc PATHS /usr/local/cuda/bin)
  get_filename_component(_toolkit "${ACCELERATE_NVCC}" REALPATH)
  get_filename_component(_toolkit "${_toolkit}" DIRECTORY)
  get_filename_component(ACCELERATE_TOOLKIT "${_toolkit}" DIRECTORY)
  find_path(ACCELERATE_CUDA_INCLUDE crt/host_config.h NO_CACHE
            HINTS ${_nvidia_includes} ${_toolkit}/../include)
  find_path(ACCELERATE_NCCL_INCLUDE nccl.h NO_CACHE HINTS ${_nvidia_includes})
  if(ACCELERATE_CUDA_INCLUDE AND ACCELERATE_NCCL_INCLUDE)
    set(ACCELERATE_TORCH_NCCL ON)
    file(STRINGS ${ACCELERATE_CUDA_INCLUDE}/cuda_runtime_api.h _text REGEX "define CUDART_VERSION")
    if(_text MATCHES "([0-9]+)[0-9][0-9][0-9]$")
      set(ACCELERATE_CUDA_VERSION ${CMAKE_MATCH_1})
    endif()
    set(_cuda_includes ${ACCELERATE_CUDA_INCLUDE} ${ACCELERATE_NCCL_INCLUDE})
  endif()
endif()

if(NOT TARGET accelerate::torch)
  add_library(accelerate::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(
    accelerate::torch SYSTEM
    INTERFACE ${ACCELERATE_TORCH_DIR}/include
              ${ACCELERATE_TORCH_DIR}/include/torch/csrc/api/include
              ${_cuda_includes})
  set(_lib ${ACCELERATE_TORCH_DIR}/lib)
  target_link_directories(accelerate::torch INTERFACE ${_lib})
  target_link_libraries(accelerate::torch INTERFACE ${_lib}/libtorch_cpu.so
                                                    ${_lib}/libc10.so)
  if(ACCELERATE_TORCH_CUDA)
    # Nothing refers to these by name: they register the CUDA kernels. Targets
    # with the property ACCELERATE_ANY_TORCH also load beside a torch without.
    target_link_libraries(
      accelerate::torch
      INTERFACE "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:ACCELERATE_ANY_TORCH>>>:-Wl,--push-state,--no-as-needed;${_lib}/libtorch_cuda.so;${_lib}/libc10_cuda.so;-Wl,--pop-state>")
    # The wheel's libraries find NVIDIA's through their own run paths only.
    target_link_options(accelerate::torch INTERFACE
                        -Wl,--allow-shlib-undefined)
  endif()
endif()
