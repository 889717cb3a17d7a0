# `cmake --install` and `./dev package`: headers, libraries, the programs and a
# package config, in components that are packages of Debian.
#
# Nothing that is installed names a folder of this machine: torch is found through
# the link lib/accelerate/torch, beside the libraries. `cmake --install` makes it;
# packages leave it to the machine that they are installed on.
include(CMakePackageConfigHelpers)
set(_torch_link accelerate/torch)
get_property(_libraries GLOBAL PROPERTY ACCELERATE_LIBRARIES)
install(TARGETS ${_libraries} EXPORT accelerateTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime
                NAMELINK_COMPONENT development)
if(ACCELERATE_WITH_TORCH AND NOT SKBUILD)
  # The order in which the linker looks: beside, then in torch.
  foreach(_target accelerate accelerate_cuda accelerate_models accelerate_selftest)
    if(TARGET ${_target})
      set_target_properties(
        ${_target}
        PROPERTIES INSTALL_RPATH
                   "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR};$ORIGIN/${_torch_link}/lib;$ORIGIN/../${CMAKE_INSTALL_LIBDIR}/${_torch_link}/lib"
                   INSTALL_RPATH_USE_LINK_PATH OFF)
    endif()
  endforeach()
  install(
    CODE "set(_link \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/${_torch_link}\")
cmake_path(GET _link PARENT_PATH _folder)
file(MAKE_DIRECTORY \"\${_folder}\")
file(CREATE_LINK \"${ACCELERATE_TORCH_DIR}\" \"\${_link}\" SYMBOLIC)"
    COMPONENT torch_link)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/accelerate
                  ${PROJECT_BINARY_DIR}/include/accelerate
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

set(_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/accelerate)
install(EXPORT accelerateTargets NAMESPACE accelerate:: DESTINATION ${_config_dir}
        COMPONENT development)
set(ACCELERATE_TORCH_LINK ${CMAKE_INSTALL_LIBDIR}/${_torch_link})
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/accelerateConfig.cmake.in
  ${PROJECT_BINARY_DIR}/accelerateConfig.cmake
  INSTALL_DESTINATION ${_config_dir} PATH_VARS ACCELERATE_TORCH_LINK)
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/accelerateConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/accelerateConfig.cmake
              ${PROJECT_BINARY_DIR}/accelerateConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindTorchWheel.cmake
        DESTINATION ${_config_dir} COMPONENT development)
if(PROJECT_IS_TOP_LEVEL AND NOT SKBUILD)
  include(Packages)
endif()
