# `cmake --install`: headers, libraries, the program and a package config.
include(CMakePackageConfigHelpers)
get_property(_libraries GLOBAL PROPERTY ACCELERATE_LIBRARIES)
install(TARGETS ${_libraries} EXPORT accelerateTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(ACCELERATE_WITH_TORCH AND NOT SKBUILD)
  # CMAKE_INSTALL_RPATH_USE_LINK_PATH leaves out folders below the source tree,
  # such as a virtual environment there.
  foreach(_target accelerate accelerate_cuda accelerate_models accelerate_selftest)
    if(TARGET ${_target})
      set_property(TARGET ${_target} APPEND PROPERTY INSTALL_RPATH ${ACCELERATE_TORCH_DIR}/lib)
    endif()
  endforeach()
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/accelerate
                  ${PROJECT_BINARY_DIR}/include/accelerate
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/accelerate)
install(EXPORT accelerateTargets NAMESPACE accelerate:: DESTINATION ${_config_dir})
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/accelerateConfig.cmake.in
  ${PROJECT_BINARY_DIR}/accelerateConfig.cmake
  INSTALL_DESTINATION ${_config_dir})
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/accelerateConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/accelerateConfig.cmake
              ${PROJECT_BINARY_DIR}/accelerateConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindTorchWheel.cmake
        DESTINATION ${_config_dir})
