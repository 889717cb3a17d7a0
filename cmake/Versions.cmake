# What is written once elsewhere: the version in python/accelerate/__init__.py,
# "API+cpp.OURS", and the supported torch releases in pyproject.toml.
#
# Gives: ACCELERATE_PACKAGE_VERSION (the whole), ACCELERATE_VERSION (ours),
# ACCELERATE_TORCH_FIRST and ACCELERATE_TORCH_END (the first release, and the
# first one that is too new), ACCELERATE_TORCH_RANGE ("2.1 to 2.9"),
# ACCELERATE_HOME_PAGE.
set(_root ${CMAKE_CURRENT_LIST_DIR}/..)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             ${_root}/python/accelerate/__init__.py ${_root}/pyproject.toml)

# accelerate_read(FILE REGEX): what the groups of REGEX match in FILE, in
# ACCELERATE_READ_1 and so on.
function(accelerate_read file regex)
  file(READ ${_root}/${file} text)
  if(NOT text MATCHES "${regex}")
    message(FATAL_ERROR "[configure] ${file} has no line like ${regex}")
  endif()
  foreach(group RANGE 1 ${CMAKE_MATCH_COUNT})
    set(ACCELERATE_READ_${group} ${CMAKE_MATCH_${group}} PARENT_SCOPE)
  endforeach()
endfunction()

accelerate_read(python/accelerate/__init__.py "__version__ = \"([0-9.]+\\+cpp\\.([0-9.]+))\"")
set(ACCELERATE_PACKAGE_VERSION ${ACCELERATE_READ_1})
set(ACCELERATE_VERSION ${ACCELERATE_READ_2})
accelerate_read(pyproject.toml "\"torch>=([0-9]+\\.[0-9]+),<(([0-9]+)\\.([0-9]+))\"")
set(ACCELERATE_TORCH_FIRST ${ACCELERATE_READ_1})
set(ACCELERATE_TORCH_END ${ACCELERATE_READ_2})
math(EXPR _last "${ACCELERATE_READ_4} - 1")
set(ACCELERATE_TORCH_RANGE "${ACCELERATE_TORCH_FIRST} to ${ACCELERATE_READ_3}.${_last}")
accelerate_read(pyproject.toml "home-page = \"([^\"]+)\"")
set(ACCELERATE_HOME_PAGE ${ACCELERATE_READ_1})
