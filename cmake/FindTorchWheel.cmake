# Finds torch without torch's own package, which demands a CUDA toolkit where
# the wheel was built for CUDA, even if nothing is compiled for a GPU.
#
# Looked at in this order: ACCELERATE_TORCH_DIR; a LibTorch folder on
# CMAKE_PREFIX_PATH; the site-packages of ACCELERATE_PYTHON (default: python3).
#
# Gives: accelerate::torch (headers, libraries), ACCELERATE_TORCH_DIR,
# ACCELERATE_TORCH_VERSION, ACCELERATE_TORCH_CUDA (has CUDA and NCCL headers).
include_guard(GLOBAL)

set(ACCELERATE_TORCH_DIR "" CACHE PATH "Folder with torch's lib/ and include/")
set(ACCELERATE_PYTHON "$ENV{ACCELERATE_PYTHON}" CACHE STRING
    "Python whose installed torch is used")
if(SKBUILD)
  # pip's build environment hides the packages of the one that it installs into.
  set(ACCELERATE_PYTHON ${Python_EXECUTABLE})
endif()

if(NOT ACCELERATE_TORCH_DIR)
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
    if(EXISTS ${prefix}/lib/libtorch_cpu.so AND EXISTS ${prefix}/include/torch)
      set(ACCELERATE_TORCH_DIR ${prefix} CACHE PATH "" FORCE)
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
  if(NOT _failed AND EXISTS ${_purelib}/torch/lib/libtorch_cpu.so)
    file(REAL_PATH ${_purelib}/torch _torch)
    set(ACCELERATE_TORCH_DIR ${_torch} CACHE PATH "" FORCE)
  endif()
endif()

set(ACCELERATE_TORCH_VERSION "")
foreach(_file version.py build-version)
  if(EXISTS ${ACCELERATE_TORCH_DIR}/${_file} AND NOT ACCELERATE_TORCH_VERSION)
    file(READ ${ACCELERATE_TORCH_DIR}/${_file} _text)
    string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" ACCELERATE_TORCH_VERSION "${_text}")
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  TorchWheel
  REQUIRED_VARS ACCELERATE_TORCH_DIR ACCELERATE_TORCH_VERSION
  VERSION_VAR ACCELERATE_TORCH_VERSION
  REASON_FAILURE_MESSAGE
    "no torch found in '${_purelib}': install torch 2.11 to 2.15 there first (pip install torch==2.11.0), set ACCELERATE_PYTHON to a Python that has it, or put a LibTorch folder on CMAKE_PREFIX_PATH")
if(NOT TorchWheel_FOUND)
  return()
endif()
if(ACCELERATE_TORCH_VERSION VERSION_LESS 2.11 OR ACCELERATE_TORCH_VERSION VERSION_GREATER_EQUAL 2.16)
  message(FATAL_ERROR "torch ${ACCELERATE_TORCH_VERSION} found at ${ACCELERATE_TORCH_DIR}, 2.11 to 2.15 needed")
endif()

# CUDA's and NCCL's headers: wheels bring them in site-packages/nvidia.
get_filename_component(_site ${ACCELERATE_TORCH_DIR} DIRECTORY)
file(GLOB _nvidia_includes ${_site}/nvidia/*/include)
set(ACCELERATE_TORCH_CUDA OFF)
set(_cuda_includes)
if(EXISTS ${ACCELERATE_TORCH_DIR}/lib/libtorch_cuda.so)
  # crt/ is a package of its own: where the wheels lack it, a toolkit has it.
  find_program(ACCELERATE_NVCC nvcc PATHS /usr/local/cuda/bin)
  get_filename_component(_toolkit "${ACCELERATE_NVCC}" REALPATH)
  get_filename_component(_toolkit "${_toolkit}" DIRECTORY)
  find_path(ACCELERATE_CUDA_INCLUDE crt/host_config.h
            HINTS ${_nvidia_includes} ${_toolkit}/../include)
  find_path(ACCELERATE_NCCL_INCLUDE nccl.h HINTS ${_nvidia_includes})
  if(ACCELERATE_CUDA_INCLUDE AND ACCELERATE_NCCL_INCLUDE)
    set(ACCELERATE_TORCH_CUDA ON)
    set(_cuda_includes ${ACCELERATE_CUDA_INCLUDE} ${ACCELERATE_NCCL_INCLUDE})
  else()
    message(WARNING "this torch has CUDA, but the headers crt/host_config.h or nccl.h were not found: NCCL is left out; pip install nvidia-cuda-crt and nvidia-nccl, or install a CUDA toolkit")
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
  if(EXISTS ${_lib}/libtorch_cuda.so)
    # Nothing refers to these by name: they register the CUDA kernels.
    target_link_libraries(
      accelerate::torch
      INTERFACE -Wl,--push-state,--no-as-needed ${_lib}/libtorch_cuda.so
                ${_lib}/libc10_cuda.so -Wl,--pop-state)
    # The wheel's libraries find NVIDIA's through their own run paths only.
    target_link_options(accelerate::torch INTERFACE
                        -Wl,--allow-shlib-undefined)
  endif()
endif()
