# CPack reads this once per kind of package.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  # All components in one archive, of one folder.
  set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
  return()
endif()
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)

# The packages of the libraries that ours link, and at least the releases of this
# machine. dpkg-shlibdeps would say older ones, but it reads the symbols of all
# libraries of torch first, which takes minutes, and fails for those without a
# package.
set(_names)
foreach(_file IN LISTS CPACK_ACCELERATE_LIBRARIES)
  execute_process(COMMAND ${CPACK_ACCELERATE_READELF} -d ${_file}
                  OUTPUT_VARIABLE _dynamic COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "NEEDED[^\n]*" _lines "${_dynamic}")
  foreach(_line IN LISTS _lines)
    string(REGEX REPLACE ".*\\[(.*)\\].*" "\\1" _name "${_line}")
    list(APPEND _names ${_name})
  endforeach()
endforeach()
list(REMOVE_DUPLICATES _names)
set(_packages)
foreach(_name IN LISTS _names)
  # Ours and torch's are in no package.
  execute_process(COMMAND dpkg-query --search "/lib/${CPACK_ACCELERATE_ARCHITECTURE}/${_name}"
                                     "/usr/lib/${CPACK_ACCELERATE_ARCHITECTURE}/${_name}"
                  OUTPUT_VARIABLE _owner ERROR_QUIET)
  if(_owner MATCHES "^([^:, \n]+)")
    list(APPEND _packages ${CMAKE_MATCH_1})
  endif()
endforeach()
list(REMOVE_DUPLICATES _packages)
list(SORT _packages)
set(_depends)
foreach(_package IN LISTS _packages)
  execute_process(COMMAND dpkg-query --show "--showformat=\${Version}\\n" ${_package}
                  OUTPUT_VARIABLE _version COMMAND_ERROR_IS_FATAL ANY)
  # Without Debian's own number: its updates keep the interface.
  string(REGEX REPLACE "-[^-]*\n.*|\n.*" "" _version "${_version}")
  list(APPEND _depends "${_package} (>= ${_version})")
endforeach()
list(JOIN _depends ", " CPACK_DEBIAN_RUNTIME_PACKAGE_DEPENDS)
